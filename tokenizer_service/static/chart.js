// Lines and areas over the last minute, as SVG paths in a box of 600 × 100.

const WIDTH = 600;
const HEIGHT = 100;
const NS = "http://www.w3.org/2000/svg";

function path(svg, name) {
  let found = svg.querySelector(`.${name}`);
  if (!found) {
    found = document.createElementNS(NS, "path");
    found.setAttribute("class", name);
    svg.append(found);
  }
  return found;
}

const x = (sample, now, span) => (WIDTH * (1 + (sample.at - now) / span)).toFixed(1);

/** A stepped area; `from` is the edge that it stands on: "top" or "bottom". */
export function area(svg, name, samples, span, share, from) {
  const edge = from === "top" ? 0 : HEIGHT;
  const now = samples.at(-1)?.at ?? 0;
  const points = samples.map((sample) => {
    const height = HEIGHT * Math.min(1, share(sample));
    return [x(sample, now, span), (from === "top" ? height : HEIGHT - height).toFixed(1)];
  });
  const steps = points.map(([at, y]) => `H${at}V${y}`);
  const first = points[0]?.[0] ?? 0;
  path(svg, name).setAttribute("d", points.length ? `M${first} ${edge}${steps.join("")}V${edge}Z` : "");
}

/** A line; where `value` is null there is none. */
export function line(svg, name, samples, span, value, top) {
  const now = samples.at(-1)?.at ?? 0;
  let pen = false;
  const drawn = samples.map((sample) => {
    const here = value(sample);
    const command = here === null ? "" : `${pen ? "L" : "M"}${x(sample, now, span)} ${height(here, top)}`;
    pen = here !== null;
    return command;
  });
  path(svg, name).setAttribute("d", drawn.join(""));
}

/** A level line over the whole width. */
export function level(svg, name, value, top) {
  path(svg, name).setAttribute("d", `M0 ${height(value, top)}H${WIDTH}`);
}

const height = (value, top) => (HEIGHT - (HEIGHT - 4) * Math.min(1, value / top)).toFixed(1);
