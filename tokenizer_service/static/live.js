// What the server does, from /activity: the split, the decisions, latencies, queue and pool.

import { events, request } from "./api.js";
import { area, level, line } from "./chart.js";

const SPAN = 60; // seconds
const SHOWN = 30; // decisions
const get = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const say = (id, text) => {
  const element = get(id);
  if (element.textContent !== text) element.textContent = text;
};

let about = null; // the overview
let samples = [];
let decisions = [];

function time(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  return seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
}
const percent = (share) => `${Math.round(share * 100)} %`;
const width = (share) => `${(share * 100).toFixed(2)}%`; // as CSS wants it
const rate = (value) => (value < 10 ? value.toFixed(1) : number.format(Math.round(value)));
const units = (count) => `${count} ${about.unit}${count === 1 ? "" : "s"}`;

// --- the split ---

function showSplit(now) {
  if (!about.units) return;
  const { prefill, decode } = now;
  const over = prefill.units + decode.units > about.units;
  get("device").classList.toggle("shared", over);
  for (const [name, lane] of [["prefill", prefill], ["decode", decode]]) {
    const bar = get(`bar-${name}`);
    const overlap = over ? 0.5 : 1; // both have all of it: show each on its half
    bar.style.width = width((lane.units / about.units) * overlap);
    bar.firstElementChild.textContent = lane.units ? `${name} ${lane.units}` : "";
    say(`${name}-figures`, `${percent(lane.busy)} of the time`);
  }
  say("split-units", units(about.units));
  say("both-figure", percent(now.both_busy));
  const spoken = `Prefill on ${units(prefill.units)}, decode on ${units(decode.units)}, of ${units(about.units)}.`;
  get("device").ariaLabel = spoken;
  const chart = get("split-chart");
  chart.ariaLabel = `Split over the last minute; now: ${spoken}`;
  area(chart, "area-prefill", samples, SPAN, (sample) => sample.prefill.units / about.units, "top");
  area(chart, "area-decode", samples, SPAN, (sample) => sample.decode.units / about.units, "bottom");
}

// --- decisions ---

function splitOf(plan) {
  if (plan.sharing === "disjoint") return `${plan.prefill_units} | ${plan.decode_units}`;
  return plan.sharing === "shared" ? "shared" : "in turns";
}

function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

function showDecision(now, plan) {
  const name = now.scheduler || "none acts";
  say("scheduler", plan?.seq ? `${name} · plan ${plan.seq} · ${splitOf(plan)}` : name);
  if (!plan?.seq) return;
  const pilot = plan.autopilot ? "No scheduler acts; the worker goes on by the last plan. " : "";
  say("reason", pilot + plan.reason);
}

function noteDecision(now, plan) {
  const last = decisions.at(-1);
  const same = last?.plan.seq === plan.seq && last.scheduler === now.scheduler;
  if (!plan.seq || same) return;
  decisions = [...decisions, { at: now.at, scheduler: now.scheduler, plan }].slice(-SHOWN);
  listDecisions();
}

function listDecisions() {
  const rows = decisions.toReversed().map(({ at, plan }) => {
    const row = document.createElement("li");
    const when = document.createElement("time");
    when.textContent = clock(at);
    const split = document.createElement("b");
    split.textContent = splitOf(plan);
    const why = document.createElement("span");
    why.textContent = plan.reason;
    row.append(when, split, why);
    return row;
  });
  get("decisions").replaceChildren(...rows);
}

// --- latencies ---

function showLatency(name, now, objective, described) {
  const { count, p50_s: p50, p99_s: p99, within } = now[name];
  say(`${name}-objective`, `objective ${described}`);
  say(`${name}-p50`, count ? time(p50) : "–");
  const more = get(`${name}-more`);
  more.classList.toggle("missed", within < count);
  say(`${name}-more`, count
    ? `P99 ${time(p99)} · ${percent(within / count)} of ${number.format(count)} kept it, last 10 s`
    : "Nothing in the last 10 s.");
  const most = Math.max(objective * 1.25, ...samples.map((sample) => sample[name].p99_s));
  const chart = get(`${name}-chart`);
  const of = (key) => (sample) => (sample[name].count ? sample[name][key] : null);
  level(chart, "limit", objective, most);
  line(chart, "p99", samples, SPAN, of("p99_s"), most);
  line(chart, "p50", samples, SPAN, of("p50_s"), most);
  chart.ariaLabel = count
    ? `Over the last minute; now the median is ${time(p50)}, the 99th percentile ${time(p99)}.`
    : "Nothing in the last 10 seconds.";
}

// --- queue and pool ---

function showPool(now) {
  const { pages_total: total, pages_referenced: used, pages_cached: cached } = now;
  if (!total) return;
  const tokens = (pages) => number.format(pages * about.page_size);
  get("pool-used").style.width = width(used / total);
  get("pool-cached").style.width = width(cached / total);
  get("pool-cached").style.left = width(used / total);
  say("pool-size", `${tokens(total)} tokens`);
  const text = `${tokens(used)} in use (${percent(used / total)}), ${tokens(cached)} kept as prefixes`;
  say("pool-more", text);
  get("pool").ariaLabel = text;
}

function show(plan) {
  const now = samples.at(-1);
  if (!now) return;
  state(now.not_ready ? "problem" : "ready", now.not_ready ?? "ready");
  showSplit(now);
  showDecision(now, plan);
  say("running", number.format(now.running));
  say("queued", number.format(now.queued));
  say("prefill-rate", rate(now.prefill.tokens_per_s));
  say("decode-rate", rate(now.decode.tokens_per_s));
  const { tbt_ms: tbt, ttft_ms: ttft, ttft_ms_per_token: each } = about.objectives;
  showLatency("ttft", now, ttft / 1000, time(ttft / 1000) + (each ? ` + ${each} ms a token` : ""));
  showLatency("tbt", now, tbt / 1000, time(tbt / 1000));
  showPool(now);
}

function state(kind, text) {
  get("state").dataset.state = kind;
  say("state", text);
}

async function follow() {
  const response = await request("activity", { headers: { Accept: "text/event-stream" } });
  for await (const event of events(response)) {
    if (event.samples) {
      about = event;
      samples = event.samples;
      decisions = event.decisions;
      say("model-name", about.model);
      listDecisions();
      show(decisions.at(-1)?.plan);
      continue;
    }
    about.unit = event.unit || about.unit;
    about.units = event.units || about.units;
    samples = [...samples, event.sample].slice(-Math.round(SPAN / about.period_s));
    if (event.plan) noteDecision(event.sample, event.plan);
    show(event.plan);
  }
}

/** Follow the server for ever; a connection that breaks is made again. */
export async function start() {
  for (let failures = 0; ; failures += 1) {
    const begun = Date.now();
    try {
      await follow();
      state("problem", "the server has closed the connection");
    } catch (error) {
      state("problem", error instanceof TypeError ? "the server is not reachable" : error.message);
    }
    if (Date.now() - begun > 10_000) failures = 0;
    await new Promise((resolve) => setTimeout(resolve, Math.min(5000, 500 * 2 ** failures)));
  }
}
