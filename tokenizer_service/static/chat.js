// The chat: what was said, one answer at a time, and how fast it came.

import { events, post } from "./api.js";
import { render } from "./markdown.js";

const get = (id) => document.getElementById(id);
const [messages, empty, prompt, send, stop] =
  ["messages", "empty", "prompt", "send", "stop"].map(get);

let model = "";
let turns = []; // {role, content}
let running = null; // AbortController of the answer that is being written

function numberOf(id) {
  const { value, valueAsNumber } = get(id);
  return value === "" ? undefined : valueAsNumber;
}

function body() {
  const system = get("system").value.trim();
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    temperature: numberOf("temperature"),
    top_p: numberOf("top_p"),
    max_tokens: numberOf("max_tokens"),
    seed: numberOf("seed"),
    stop: get("stop_text").value || undefined,
    stream: true,
    stream_options: { include_usage: true },
  };
}

function add(role, text) {
  empty.hidden = true;
  const made = document.createElement("div");
  made.className = `message ${role}`;
  if (role === "user") made.textContent = text;
  messages.append(made);
  messages.scrollTop = messages.scrollHeight;
  return made;
}

/** One answer on the page, drawn at most once a frame. */
class Answer {
  text = "";
  #drawing = false;
  #box = add("assistant");
  #text = document.createElement("div");
  #about = document.createElement("p");
  #asked = performance.now();
  #first = null;

  constructor() {
    this.#text.className = "text";
    this.#about.className = "about";
    this.#box.classList.add("growing");
    this.#box.append(this.#text);
    this.#draw();
  }

  grow(text) {
    this.#first ??= performance.now();
    this.text += text;
    if (!this.#drawing) {
      this.#drawing = true;
      requestAnimationFrame(() => this.#draw());
    }
  }

  #draw() {
    this.#drawing = false;
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 60;
    this.#text.replaceChildren(...render(this.text));
    if (atEnd) messages.scrollTop = messages.scrollHeight;
  }

  end(how, usage) {
    const seconds = (performance.now() - (this.#first ?? this.#asked)) / 1000;
    const parts = how ? [how] : [];
    if (this.#first) parts.push(`first token after ${time(this.#first - this.#asked)}`);
    if (usage) {
      const { prompt_tokens: given, completion_tokens: written } = usage;
      const cached = usage.prompt_tokens_details?.cached_tokens;
      parts.push(`${given} prompt tokens${cached ? `, ${cached} of them cached` : ""}`);
      parts.push(`${written} written`);
      if (written > 1 && seconds > 0) parts.push(`${((written - 1) / seconds).toFixed(1)} tokens/s`);
    }
    this.#about.textContent = parts.join(" · ");
    this.#finish(this.#about);
    get("announcer").textContent = `Answer complete. ${this.text}`;
  }

  fail(message) {
    this.#about.className = "error";
    this.#about.textContent = message;
    this.#finish(this.#about);
    get("announcer").textContent = `No answer: ${message}`;
  }

  #finish(line) {
    this.#draw();
    this.#box.classList.remove("growing");
    this.#box.append(line);
    messages.scrollTop = messages.scrollHeight;
  }
}

const time = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const ENDS = { length: "cut at the limit", tool_calls: "asks for a tool" };

async function answer() {
  const mine = (running = new AbortController());
  send.hidden = true;
  stop.hidden = false;
  const shown = new Answer();
  let usage = null;
  let how = "";
  try {
    const response = await post("v1/chat/completions", body(), mine.signal);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      for (const choice of event.choices) {
        if (choice.delta.content) shown.grow(choice.delta.content);
        how = ENDS[choice.finish_reason] ?? how;
      }
    }
    shown.end(how, usage);
  } catch (error) {
    if (mine.signal.aborted) shown.end("stopped", null);
    else shown.fail(error.message);
  }
  if (running !== mine) return; // another chat has begun
  running = null;
  if (shown.text) turns.push({ role: "assistant", content: shown.text });
  else turns.pop();
  stop.hidden = true;
  send.hidden = false;
}

function submit() {
  const text = prompt.value.trim();
  if (!text || running || !model) return;
  prompt.value = "";
  turns.push({ role: "user", content: text });
  add("user", text);
  answer();
}

function restart() {
  running?.abort();
  running = null;
  turns = [];
  messages.replaceChildren(empty);
  empty.hidden = false;
  stop.hidden = true;
  send.hidden = false;
  prompt.focus();
}

/** Begin to listen; `name` is the model that answers. */
export function start(name) {
  model = name;
}

get("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
stop.addEventListener("click", () => {
  running?.abort();
  prompt.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
get("new-chat").addEventListener("click", restart);
