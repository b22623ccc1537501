// Header lines, MACs and the keys of the hour.
import { createHmac, hkdfSync, timingSafeEqual } from "node:crypto";
import { Fault } from "./message.mjs";

export const toHeader = (data) => `:${data.toString("base64")}:`;

export function fromHeader(line) {
  if (line.length > 4096) throw new Fault("oversized");
  const found = /^[ \t]*:((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?):[ \t]*$/.exec(line);
  if (found === null) throw new Fault("malformed");
  const data = Buffer.from(found[1], "base64");
  if (data.length > 3060) throw new Fault("oversized");
  return data;
}

/** The body, and key id and MAC if there is a trailer. */
export function splitMAC(data) {
  const at = data.length - 19;
  if (at <= 0 || data[at] !== 0x7a || data[at + 1] !== 0x11) return { body: data, mac: null };
  let place = 0;
  while (place < at) place = nextField(data, place);
  return place === at ? { body: data.subarray(0, at), mac: data.subarray(at + 2) } : { body: data, mac: null };
}

function varint(data, place) {
  let value = 0n;
  for (let count = 0; count < 10 && place + count < data.length; count++) {
    value |= BigInt(data[place + count] & 0x7f) << BigInt(7 * count);
    if (data[place + count] < 0x80) return [value, place + count + 1];
  }
  return [0n, Infinity];
}

function nextField(data, place) {
  const [tag, after] = varint(data, place);
  switch (Number(tag & 7n)) {
    case 0: return varint(data, after)[1];
    case 1: return after + 8;
    case 2: {
      const [length, start] = varint(data, after);
      return start + Number(length);
    }
    case 5: return after + 4;
    default: return Infinity;
  }
}

const LABEL = "otelctx/1\0";
const HOUR = 3600;

function big(value, bytes) {
  const data = Buffer.alloc(8);
  data.writeBigUInt64BE(BigInt(value));
  return data.subarray(8 - bytes);
}

export class Key {
  constructor(id, domain, master) {
    Object.assign(this, { id, domain, master });
  }

  hourKey(hour) {
    const info = Buffer.concat([Buffer.from(`${LABEL}${this.domain}\0`), big(hour, 8)]);
    return Buffer.from(hkdfSync("sha256", this.master, "", info, 32));
  }

  input(direction, body) {
    const domain = Buffer.from(this.domain);
    return Buffer.concat([Buffer.from(LABEL + direction), big(domain.length, 2), domain, body]);
  }

  mac(direction, body, hour) {
    return createHmac("sha256", this.hourKey(hour)).update(this.input(direction, body)).digest().subarray(0, 16);
  }

  trailer(direction, body, now) {
    return Buffer.concat([Buffer.of(0x7a, 0x11, this.id), this.mac(direction, body, Math.floor(now / HOUR))]);
  }

  seal(direction, body, now) {
    return toHeader(Buffer.concat([body, this.trailer(direction, body, now)]));
  }
}

/** The domain that vouches for a body, or null. */
export function verify(keys, direction, body, mac, now) {
  const hour = Math.floor(now / HOUR);
  for (const key of keys.filter(({ id }) => id === mac[0]))
    for (const candidate of [hour, Math.max(hour - 1, 0), hour + 1])
      if (timingSafeEqual(key.mac(direction, body, candidate), mac.subarray(1))) return key.domain;
  return null;
}

/** `id:base64`, of the domain default. */
export function parseKey(written) {
  const [id, secret] = written.split(":");
  return new Key(Number(id), "default", Buffer.from(secret, "base64"));
}
