import { check } from "./check.mjs";
import { converse } from "./client.mjs";
import { serve } from "./server.mjs";

const [word, ...rest] = process.argv.slice(2);
const commands = { check: [check, 1], converse: [converse, 2], serve: [serve, 1] };
const [command, count] = commands[word] ?? [null, 0];
if (command === null || rest.length !== count) {
  console.error("usage: main.mjs check FOLDER | converse URL KEY | serve KEY");
  process.exit(2);
}
await command(...rest);
