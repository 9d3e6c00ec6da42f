// Requests to this server: with the key where one is asked for, errors as messages a person reads.

const STORED = "tandem-key";
const dialog = document.getElementById("key-dialog");
const forget = document.getElementById("forget-key");
let asking = null; // one dialog for all requests that wait

forget.addEventListener("click", () => {
  sessionStorage.removeItem(STORED);
  location.reload();
});
forget.hidden = !sessionStorage.getItem(STORED);

function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    document.getElementById("key-wrong").hidden = !wrong;
    const input = document.getElementById("key");
    dialog.addEventListener("close", () => {
      asking = null;
      if (input.value) sessionStorage.setItem(STORED, input.value);
      forget.hidden = !input.value;
      input.value = "";
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** Answer of the server; asks for a key as often as the server wants another one. */
export async function request(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const authorization = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch(path, { ...options, headers: { ...headers, ...authorization } });
    if (response.status !== 401) {
      if (!response.ok) throw new Error(await reason(response));
      return response;
    }
    await askForKey(Boolean(key));
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

export function post(path, body, signal) {
  return request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

/** The JSON objects of a stream of events; `[DONE]` ends it. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") return;
        yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
