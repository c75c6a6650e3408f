// Numbers for people.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const whole = (number) => WHOLE.format(number);

/** Exact while it is short, then three digits and a letter. */
export const brief = (number) => (Math.abs(number) < 100_000 ? WHOLE.format(number) : SHORT.format(number));

export function bytes(number) {
  let unit = 0;
  let value = number;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

export const clock = (seconds) => CLOCK.format(new Date(seconds * 1000));

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
