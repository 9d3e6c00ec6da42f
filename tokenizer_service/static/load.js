// A little load from the page itself, so that there is something to see: rounds of random prompts.

import { events, post } from "./api.js";

const LONGEST = 120_000; // milliseconds
const STREAMS = 2; // rounds at the same time; a browser has six connections to a server
const WORDS = `time river stone paper light window garden engine silver winter letter market
  forest signal harbor meadow copper planet thread mirror castle bridge summer island`.split(/\s+/);

const get = (id) => document.getElementById(id);
const button = get("load");
let running = null;

const text = (count) =>
  Array.from({ length: count }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(" ");

function body(model) {
  const [prompts, words, tokens] = ["load_prompts", "load_words", "load_tokens"].map(
    (id) => Math.max(1, get(id).valueAsNumber || 1));
  const each = Math.max(1, Math.ceil(prompts / STREAMS));
  return {
    model,
    prompt: Array.from({ length: each }, () => text(words)),
    max_tokens: tokens,
    ignore_eos: true,
    stream: true,
  };
}

async function rounds(model, signal) {
  while (!signal.aborted) {
    for await (const event of events(await post("v1/completions", body(model), signal))) {
      if (event.error) throw new Error(event.error.message);
    }
  }
}

async function run(model) {
  const mine = (running = new AbortController());
  const over = setTimeout(() => mine.abort(), LONGEST);
  button.ariaPressed = "true";
  button.textContent = "Stop the load";
  try {
    await Promise.all(Array.from({ length: STREAMS }, () => rounds(model, mine.signal)));
  } catch (error) {
    if (!mine.signal.aborted) get("announcer").textContent = `The load has ended: ${error.message}`;
  }
  mine.abort();
  clearTimeout(over);
  running = null;
  button.ariaPressed = "false";
  button.textContent = "Make some load";
}

/** Wire the button; `model` is the one to load. */
export function start(model) {
  button.addEventListener("click", () => (running ? running.abort() : run(model)));
}
