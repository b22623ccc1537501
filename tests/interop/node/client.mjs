// The least that may send REF and DELTA: it keeps what it was acked, and repeats with FULL after a refusal.
import { request } from "node:http";
import { delta, encodeFrame, FRAME, full, HELD, nameOf, ref } from "./message.mjs";
import { readAck } from "./receiver.mjs";
import { KINDS, number, same, State, text } from "./state.mjs";
import { parseKey } from "./trailer.mjs";

const unix = () => Math.floor(Date.now() / 1000);

/** Status, body and the values of all otelctx-ack lines. */
function post(url, line) {
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: "POST", headers: { otelctx: line } }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () =>
        resolve({
          status: response.statusCode,
          body: Buffer.concat(parts).toString(),
          lines: response.headersDistinct["otelctx-ack"] ?? [],
        }),
      );
    });
    sent.on("error", reject);
    sent.end("hello");
  });
}

class Link {
  constructor(url, key) {
    Object.assign(this, { url, key, acks: 0, boot: 0, held: [] });
  }

  frame(state, mustBeFull) {
    const last = this.held.at(-1);
    if (mustBeFull || this.acks < 3 || last === undefined) return full(state);
    if (this.held.some((base) => same(base.root, state.root))) return ref(state);
    const made = delta(last, state);
    return encodeFrame(made).length < encodeFrame(full(state)).length ? made : full(state);
  }

  async post(path, state) {
    const exchange = { kinds: [], up: {}, window: null };
    for (const again of [false, true]) {
      const frame = this.frame(state, again);
      const line = this.key.seal(">", encodeFrame(frame), unix());
      const { status, body, lines } = await post(this.url + path, line);
      exchange.kinds.push(nameOf(FRAME, frame.kind));
      Object.assign(exchange, { status, body, characters: line.length, ack: "" });
      const ack = readAck(lines, frame.root, [this.key], unix());
      if (ack === null) {
        this.acks = 0;
        return exchange;
      }
      Object.assign(exchange, { ack: ack.kind ? "NACK" : "ACK", held: HELD[ack.held] });
      if (ack.bootId !== this.boot) Object.assign(this, { boot: ack.bootId, held: [] });
      if (ack.kind === 0) return this.learn(exchange, state, ack);
      this.held = [];
      if (status !== 412 || frame.kind === FRAME.FULL) return exchange;
    }
    return exchange;
  }

  learn(exchange, state, ack) {
    this.acks++;
    if (ack.held) this.held = [...this.held, state].slice(-4);
    for (const item of ack.up.filter(({ kind }) => kind === KINDS.int))
      exchange.up[item.name] = Number(item.raw.readBigInt64BE());
    const w = ack.window;
    if (w) exchange.window = [w.used, w.limit, w.evicted, w.level, w.generation, w.version].map(Number);
    return exchange;
  }
}

/** The conversation that the test expects; one JSON object a line. */
export async function converse(url, key) {
  const link = new Link(url, parseKey(key));
  const gold = new State([text("session.id", "node-1"), text("tenant.id", "acme"), text("app.tier", "gold")]);
  const silver = gold.apply([text("app.tier", "silver"), number("app.number", -7)], []);
  const bare = silver.apply([], ["app.tier", "tenant.id"]);
  const states = [gold, gold, gold, gold, silver, silver, bare, bare, silver, silver];
  for (const [at, state] of states.entries())
    console.log(JSON.stringify(await link.post(at === 7 ? "/restart" : "/chat", state)));
}
