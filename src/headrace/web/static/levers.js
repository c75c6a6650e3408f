// Logging in, and the levers of who is logged in. Every lever is confirmed before it is pulled.

import { $, ask, make, post, setText } from "./dom.js";

export class Levers {
  /** changed(session): somebody logged in or out. bucket(): the one that is shown. */
  constructor(bucket, changed) {
    this.bucket = bucket;
    this.changed = changed;
    this.session = null;
    this.chosen = "failover";
    this.values = {};
    $("login-open").addEventListener("click", () => this.openLogin());
    $("login-cancel").addEventListener("click", () => $("login").close());
    $("login-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.login();
    });
    $("logout").addEventListener("click", () => this.logout());
  }

  async start() {
    this.use(await ask("/api/session"));
    return this.session;
  }

  use(session) {
    this.session = session;
    $("login-open").hidden = !session.login || session.user !== null;
    $("logout").hidden = session.user === null;
    setText($("logout"), `Log out ${session.user ?? ""}`);
    $("levers").hidden = !session.levers;
    if (session.levers) {
      this.render();
    }
    this.changed(session);
  }

  // -- logging in --------------------------------------------------------------------------------

  openLogin() {
    setText($("login-error"), "");
    $("login").showModal();
    $("login-user").focus();
  }

  async login() {
    try {
      const session = await post("/api/login", { user: $("login-user").value, password: $("login-password").value });
      $("login-password").value = "";
      $("login").close();
      this.use(session);
    } catch (error) {
      setText($("login-error"), `${error.message}.`);
      $("login-password").select();
    }
  }

  async logout() {
    try {
      this.use(await post("/api/logout", {}, this.session.token));
    } catch {
      this.use(await ask("/api/session"));
    }
  }

  // -- the form ----------------------------------------------------------------------------------

  prepare(lever, values) {
    this.chosen = lever;
    this.values = values;
    this.render();
    $("levers").scrollIntoView({ block: "nearest" });
    $("levers").focus({ preventScroll: true });
  }

  render() {
    const levers = this.session.levers.levers;
    const select = make(
      "select",
      { id: "lever", onchange: (event) => this.prepare(event.target.value, {}) },
      ...Object.keys(levers).map((name) => make("option", { value: name, ".selected": name === this.chosen }, name)),
    );
    const lever = levers[this.chosen];
    const fields = Object.entries(lever.parameters)
      .filter(([name]) => name !== "bucket")
      .map(([name, parameter]) => this.field(name, parameter, lever.needs));
    const outcome = make("p", { class: "outcome", id: "outcome", role: "status" });
    $("levers-body").replaceChildren(
      make(
        "form",
        { class: "lever", onsubmit: (event) => this.submit(event, lever) },
        make("div", { class: "field" }, make("label", { for: "lever" }, "Lever"), select),
        ...fields,
        make("div", { class: "field go" }, make("button", { type: "submit", class: "danger" }, "Pull…")),
      ),
      make("p", { class: "does" }, lever.does, make("small", {}, ` Allowed ${lever.allowed}.`)),
      outcome,
    );
  }

  field(name, parameter, needs) {
    const id = `lever-${name}`;
    const needed = needs.find((choice) => choice.split(" or ").includes(name));
    const others = (needed ?? "").split(" or ").filter((one) => one !== name);
    const words = !needed ? "optional" : others.length ? `or ${others.join(", ")}` : "needed";
    const flag = parameter.allowed === "true or false";
    const input = flag
      ? make("input", { id, type: "checkbox", name })
      : make("input", { id, name, autocomplete: "off", spellcheck: "false", ".value": this.values[name] ?? "", "aria-describedby": `${id}-help` });
    return make(
      "div",
      { class: "field" },
      make("label", { for: id }, name, make("small", {}, words)),
      input,
      make("small", { class: "help", id: `${id}-help` }, parameter.help),
    );
  }

  async submit(event, lever) {
    event.preventDefault();
    const body = { lever: this.chosen };
    for (const input of event.target.querySelectorAll("input")) {
      if (input.type === "checkbox" ? input.checked : input.value.trim()) {
        body[input.name] = input.type === "checkbox" ? true : input.value.trim();
      }
    }
    if ("bucket" in lever.parameters) {
      body.bucket = this.bucket();
    }
    if (/^\d+$/.test(body.vbucket ?? "")) {
      body.vbucket = Number(body.vbucket);
    }
    if (!(await this.confirmed(body, lever))) {
      return;
    }
    await this.pull(body);
  }

  confirmed(body, lever) {
    const said = Object.entries(body).filter(([name]) => name !== "lever");
    setText($("confirm-text"), lever.does);
    setText($("confirm-command"), [body.lever, ...said.map(([name, value]) => `${name}=${value}`)].join(" "));
    const dialog = $("confirm");
    dialog.returnValue = "no";
    dialog.showModal();
    $("confirm-no").focus();
    return new Promise((resolve) => {
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    });
  }

  async pull(body) {
    const outcome = $("outcome");
    try {
      const told = await post("/api/lever", body, this.session.token);
      outcome.dataset.kind = "done";
      const result = Object.entries(told.result ?? {}).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
      setText(outcome, `Done: ${body.lever}. ${result.join(", ")}`);
    } catch (error) {
      outcome.dataset.kind = "failed";
      setText(outcome, `Not done: ${error.message}.`);
      if (error.status === 401) {
        this.use(await ask("/api/session"));
      }
    }
  }
}
