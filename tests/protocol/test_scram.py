"""SCRAM and PLAIN: the RFC's own conversation, both ends against each other, and liars."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.protocol import scram
from headrace.protocol.scram import (
    HASHES,
    ITERATIONS_MAX,
    MESSAGE_SIZE_MAX,
    Credential,
    ScramClient,
    ScramServer,
    choose,
    escape_name,
    impostor,
    plain_payload,
    read_plain,
    unescape_name,
)

SALT = b"0123456789abcdef"
SECRET = b"the server's own"


def credential(mechanism: str, known: str = "pencil") -> Credential:
    return Credential.of(mechanism, known, salt=SALT, iterations=100)


def log_in(mechanism: str, user: str, password: str, known: Credential) -> bytes | None:
    """Run both ends; the server's last answer."""
    client = ScramClient(mechanism, user, password, nonce="client")
    server = ScramServer(client.first())
    assert server.user == user
    answer = server.final(client.final(server.challenge(known, nonce="server")))
    if answer is not None:
        client.verify(answer)
    return answer


def test_the_conversation_of_rfc_5802_comes_out_byte_for_byte() -> None:
    """Section 5: user "user", password "pencil"."""
    client = ScramClient("SCRAM-SHA1", "user", "pencil", nonce="fyko+d2lbbFgONRv9qkxdawL")
    assert client.first() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    known = Credential.of(
        "SCRAM-SHA1", "pencil", salt=base64.b64decode("QSXCR+Q6sek8bf92"), iterations=4096
    )
    server = ScramServer(client.first())
    challenge = server.challenge(known, nonce="3rfcNHYJY1ZVvWVs7j")
    assert challenge == (b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096")
    final = client.final(challenge)
    assert final == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    signature = server.final(final)
    assert signature == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
    client.verify(signature)


def test_the_conversation_of_rfc_7677_comes_out_byte_for_byte() -> None:
    """Section 3: the same user with SHA-256."""
    client = ScramClient("SCRAM-SHA256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    final = client.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", HASHES)
def test_both_ends_agree_on_the_right_password(mechanism: str) -> None:
    assert log_in(mechanism, "user", "pencil", credential(mechanism)) is not None


def test_a_client_salts_a_password_once_for_each_salt_count_and_mechanism(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer logs in on every link it opens; what salting gave is the same each time."""
    salted: list[tuple[str, str, bytes, int]] = []
    keys = scram._keys

    def counted(hash_name: str, password: str, salt: bytes, iterations: int) -> scram._Keys:
        salted.append((hash_name, password, salt, iterations))
        return keys(hash_name, password, salt, iterations)

    scram._kept_keys.cache_clear()
    known = {
        (mechanism, password, salt, count): Credential.of(
            mechanism, password, salt=salt, iterations=count
        )
        for mechanism in ("SCRAM-SHA512", "SCRAM-SHA1")
        for password in ("pencil", "pen")
        for salt in (SALT, SALT[::-1])
        for count in (10, 11)
    }
    monkeypatch.setattr(scram, "_keys", counted)
    for _ in range(3):
        for (mechanism, password, _, _), one in known.items():
            assert log_in(mechanism, "user", password, one) is not None
            assert log_in(mechanism, "another", password, one) is not None
    assert len(salted) == len(set(salted)) == len(known)


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_wrong_password_is_refused(mechanism: str) -> None:
    assert log_in(mechanism, "user", "pen", credential(mechanism)) is None


@pytest.mark.parametrize("mechanism", HASHES)
def test_an_unknown_user_is_refused_like_a_wrong_password(mechanism: str) -> None:
    fake = impostor(mechanism, "nobody", secret=SECRET, iterations=100)
    assert log_in(mechanism, "nobody", "pencil", fake) is None
    assert (len(fake.salt), len(fake.stored_key), len(fake.server_key)) == (
        len(SALT),
        hashlib.new(HASHES[mechanism]).digest_size,
        hashlib.new(HASHES[mechanism]).digest_size,
    )


def test_an_unknown_user_always_has_the_same_salt_and_two_have_different_ones() -> None:
    one = impostor("SCRAM-SHA1", "ann", secret=SECRET)
    assert one == impostor("SCRAM-SHA1", "ann", secret=SECRET)
    assert one.salt != impostor("SCRAM-SHA1", "bob", secret=SECRET).salt
    assert one.salt != impostor("SCRAM-SHA1", "ann", secret=b"another server").salt
    assert one.salt != impostor("SCRAM-SHA256", "ann", secret=SECRET).salt


def test_a_stored_credential_does_not_hold_the_password() -> None:
    known = credential("SCRAM-SHA512", known="correct horse")
    assert b"correct horse" not in b"".join((known.salt, known.stored_key, known.server_key))
    assert known.admits("correct horse")
    assert not known.admits("battery staple")


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "=3D,", "ünï", ""])
def test_any_user_name_survives_the_escapes(name: str) -> None:
    assert unescape_name(escape_name(name)) == name
    assert "," not in escape_name(name)


@settings(max_examples=50)
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_name_and_password_log_in(user: str, password: str) -> None:
    if "\0" in user:
        return
    assert log_in("SCRAM-SHA1", user, password, credential("SCRAM-SHA1", password)) is not None


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ScramClient("SCRAM-SHA256", "user", "pencil", nonce="client")
    client.first()
    client.final(b"r=clientserver,s=QSXCR+Q6sek8bf92,i=10")
    with pytest.raises(RemoteProtocolError, match="signature is wrong"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))


def test_a_signature_before_the_challenge_proves_nothing() -> None:
    client = ScramClient("SCRAM-SHA256", "user", "pencil", nonce="client")
    with pytest.raises(RemoteProtocolError, match="signature is wrong"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    ("challenge", "complaint"),
    [
        (b"r=other,s=QSXCR+Q6sek8bf92,i=10", "did not add to our nonce"),
        (b"r=client,s=QSXCR+Q6sek8bf92,i=10", "did not add to our nonce"),
        (b"r=clientserver,s=!,i=10", "salt '!' is not base64"),
        (b"r=clientserver,s=\xc3\xbc,i=10", "is not base64"),
        (b"r=clientserver,s=QQ==,i=0", "iteration count 0, allowed"),
        (b"r=clientserver,s=QQ==,i=-1", "'-1' is not a number"),
        (b"r=clientserver,s=QQ==,i=%d" % (ITERATIONS_MAX + 1), "iteration count 1000001, allowed"),
        (b"r=clientserver,s=QQ==,i=9999999999", "is not a number"),
        (b"r=clientserver,i=10", "lacks s= at place 2"),
        (b"", "lacks r= at place 1"),
        (b"\xff", "not UTF-8"),
        (b"r" * (MESSAGE_SIZE_MAX + 1), "of 8193 bytes, limit 8192"),
    ],
)
def test_a_challenge_out_of_the_rules_is_the_servers_fault(
    challenge: bytes, complaint: str
) -> None:
    client = ScramClient("SCRAM-SHA1", "user", "pencil", nonce="client")
    with pytest.raises(RemoteProtocolError, match=complaint):
        client.final(challenge)


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (b"y,,n=user,r=abc", "does not start with 'n,,'"),
        (b"n,a=admin,n=user,r=abc", "does not start with 'n,,'"),
        (b"n,,n=user", "lacks r= at place 2"),
        (b"n,,n=us=er,r=abc", "has '=' outside"),
        (b"n,,n=user,r=", "nonce of 0 characters"),
        (b"n,,n=user,r=" + b"x" * 2000, "nonce of 2000 characters"),
    ],
)
def test_a_first_message_out_of_the_rules_is_the_clients_fault(
    first: bytes, complaint: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        ScramServer(first)


@pytest.mark.parametrize(
    "change",
    [
        (b"c=biws", b"c=eSws"),
        (b"r=clientserver", b"r=clientother"),
        (b",p=", b",x=1,p="),
        (b",p=", b",p=AAAA"),
    ],
)
def test_a_final_message_that_was_tampered_with_is_refused(change: tuple[bytes, bytes]) -> None:
    client = ScramClient("SCRAM-SHA1", "user", "pencil", nonce="client")
    server = ScramServer(client.first())
    final = client.final(server.challenge(credential("SCRAM-SHA1"), nonce="server"))
    assert server.final(final.replace(*change)) is None


def test_a_final_message_without_proof_is_the_clients_fault() -> None:
    client = ScramClient("SCRAM-SHA1", "user", "pencil", nonce="client")
    server = ScramServer(client.first())
    server.challenge(credential("SCRAM-SHA1"), nonce="server")
    with pytest.raises(RemoteProtocolError, match="lacks p="):
        server.final(b"c=biws,r=clientserver")


def test_a_plain_payload_is_read_back() -> None:
    assert read_plain(plain_payload("user", "päss")) == ("user", "päss")
    assert read_plain(b"user\0user\0pw") == ("user", "pw")


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [(b"user\0pw", "2 parts"), (b"\0a\0b\0c", "4 parts"), (b"admin\0user\0pw", "of another user")],
)
def test_a_plain_payload_out_of_the_rules_is_refused(payload: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        read_plain(payload)


@pytest.mark.parametrize(
    ("offered", "encrypted", "chosen"),
    [
        ("SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN", False, "SCRAM-SHA512"),
        ("PLAIN SCRAM-SHA1 SCRAM-SHA256", False, "SCRAM-SHA256"),
        ("CRAM-MD5 PLAIN", False, None),
        ("CRAM-MD5 PLAIN", True, "PLAIN"),
        ("PLAIN SCRAM-SHA1", True, "SCRAM-SHA1"),
        ("", True, None),
    ],
)
def test_the_strongest_mechanism_the_link_allows_is_chosen(
    offered: str, encrypted: bool, chosen: str | None
) -> None:
    assert choose(offered, encrypted=encrypted) == chosen
