// What the page asks of the server. Each tab has a name of its own; a new question takes the place of the last.
const tab = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const headers = { "x-deepfool-tab": tab };

export class Refused extends Error {}   // the server said no, in words
export class Gone extends Error {}      // the server did not answer

async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone("The server does not answer.");
  }
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refused(told.message || `The server answered ${response.status}.`);
  }
  return response;
}

export const about = async () => (await send("/api/about")).json();
export const samples = async (query) => (await send(`/api/samples?${new URLSearchParams(query)}`)).json();
export const picture = async (file) => (await send("/api/picture", { method: "POST", headers, body: file })).json();

export async function isBack() {
  try {
    return (await fetch("/api/about")).ok;
  } catch {
    return false;
  }
}

// Asks, and calls `on(name, fields)` for every event until the answer ends; rejects if it ends too early.
export async function ask(question, on, signal) {
  const response = await send("/api/ask", {
    method: "POST", signal, headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(question),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (ended) break;  // all has been said
      if (signal.aborted) throw error;
      throw new Gone("The connection to the server was lost.");
    }
    if (part.done) break;
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const found = /^event: (\w+)\ndata: (.*)$/s.exec(event);
      if (!found) continue;
      ended ||= found[1] === "done" || found[1] === "failed";
      on(found[1], JSON.parse(found[2]));
    }
  }
  if (!ended && !signal.aborted) throw new Gone("The connection to the server was lost.");
}
