// Talking to the server this page came from: with its key where it asks for one, and streams as they come.

const KEY = "pellucid-key";

export class Api {
  // askKey(note): resolves to the key that a person typed.
  constructor(askKey) {
    this.askKey = askKey;
    this.asking = null;
    this.key = sessionStorage.getItem(KEY) || "";
  }

  // As fetch; a 401 asks for the key, once for all who wait, and tries again. Errors have the server's own words.
  async fetch(path, options = {}) {
    for (;;) {
      const sent = this.key;
      const headers = { ...options.headers, ...(sent && { authorization: `Bearer ${sent}` }) };
      const response = await fetch(path, { ...options, headers });
      if (response.status === 401) {
        if (this.key === sent) await this.renewKey(sent ? "That key does not open this server." : "");
        continue;
      }
      if (!response.ok) throw await failure(response);
      return response;
    }
  }

  async renewKey(note) {
    this.asking ??= this.askKey(note).finally(() => (this.asking = null));
    this.key = await this.asking;
    sessionStorage.setItem(KEY, this.key);
  }

  async json(path, body, options = {}) {
    const post = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    return (await this.fetch(path, { ...post, ...options })).json();
  }

  // The data of each server-sent event, parsed; "[DONE]" ends it.
  async *stream(path, body, signal) {
    const post = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    const response = await this.fetch(path, { ...post, signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  }
}

async function failure(response) {
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* no body of ours: the status must do */ }
  return Object.assign(new Error(message), { status: response.status });
}
