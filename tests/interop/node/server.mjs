// A minimal receiver with an application that says which tier it sees, and spends three tokens.
import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { encodeAck, FRAME, nameOf } from "./message.mjs";
import { answer, Receiver } from "./receiver.mjs";
import { number } from "./state.mjs";
import { parseKey, toHeader } from "./trailer.mjs";

/** Prints its port and answers until it is ended. */
export function serve(written) {
  const key = parseKey(written);
  let receiver, boot;
  let turn = 0;
  const restart = () => {
    receiver = new Receiver([key]);
    boot = randomBytes(4).readUInt32BE() || 1;
  };
  restart();

  function reply(request, response) {
    if (request.url === "/restart") {
      restart();
      return response.end();
    }
    const now = Math.floor(Date.now() / 1000);
    const lines = request.headersDistinct.otelctx ?? [];
    const outcome = lines.length ? receiver.open(lines, now) : { word: "none" };
    response.setHeader("x-outcome", outcome.word);
    response.setHeader("x-kind", nameOf(FRAME, outcome.kind) ?? "");
    const ack = outcome.word === "none" ? null : answer(outcome, boot);
    if (outcome.word === "accepted") {
      turn++;
      ack.event = randomBytes(8).readBigUInt64BE() | 1n;
      ack.up = [number("session.turn", turn), number("usage.tokens.output", 3)];
      ack.window = { used: 100 * turn, limit: 2048, version: BigInt(turn) };
    }
    if (ack !== null) {
      const body = encodeAck(ack, outcome.signed);
      response.setHeader("otelctx-ack", outcome.signed ? key.seal("<", body, now) : toHeader(body));
    }
    if (outcome.word === "refuse") {
      response.statusCode = 412;
      response.setHeader("connection", "close");
      return response.end();
    }
    return response.end(outcome.state?.map.get("user.tier")?.raw ?? "");
  }

  const server = createServer((request, response) => {
    request.resume();
    request.on("end", () => reply(request, response));
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
}
