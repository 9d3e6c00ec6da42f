// The part of Markdown that models write, as elements. Text stays text: nothing is ever HTML.

function inline(text) {
  const nodes = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
  let at = 0;
  for (const found of text.matchAll(pattern)) {
    nodes.push(text.slice(at, found.index));
    const [whole, code, strong, emphasis] = found;
    const name = code !== undefined ? "code" : strong !== undefined ? "strong" : "em";
    nodes.push(element(name, code ?? strong ?? emphasis));
    at = found.index + whole.length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function paragraph(lines) {
  const item = /^\s*(?:[-*]|(\d+)[.)])\s+/;
  const heading = /^#{1,6}\s+/;
  if (heading.test(lines[0])) {
    const first = element("p", element("strong", ...inline(lines[0].replace(heading, ""))));
    return lines.length > 1 ? [first, ...paragraph(lines.slice(1))] : [first];
  }
  if (lines.every((line) => item.test(line) || /^\s{2,}/.test(line)) && item.test(lines[0])) {
    const list = element(item.exec(lines[0])[1] ? "ol" : "ul");
    for (const line of lines) {
      if (item.test(line)) list.append(element("li", ...inline(line.replace(item, ""))));
      else list.lastChild.append(" ", ...inline(line.trim()));
    }
    return [list];
  }
  const begins = lines.findIndex((line, at) => at > 0 && item.test(line));
  if (begins > 0) return [...paragraph(lines.slice(0, begins)), ...paragraph(lines.slice(begins))];
  const made = element("p");
  lines.forEach((line, at) => made.append(...(at ? [element("br")] : []), ...inline(line)));
  return [made];
}

/** Elements for a text, which may still be growing. */
export function render(text) {
  const blocks = [];
  let lines = [];
  let code = null;
  const flush = () => {
    if (lines.length) blocks.push(...paragraph(lines));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (/^\s*```/.test(line)) {
      flush();
      if (code === null) code = [];
      else {
        blocks.push(element("pre", element("code", code.join("\n"))));
        code = null;
      }
    } else if (code !== null) code.push(line);
    else if (line.trim()) lines.push(line);
    else flush();
  }
  if (code !== null) blocks.push(element("pre", element("code", code.join("\n"))));
  flush();
  return blocks.length ? blocks : [element("p")];
}
