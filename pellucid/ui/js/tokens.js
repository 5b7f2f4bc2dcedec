// The tokens of an answer, each with its probability and what else the model considered.

import { element, hideTip, showTip } from "./look.js";

export class TokenTrail {
  constructor() {
    this.tokens = []; // { text, probability, others: [{ text, probability }], start, end } in the trail's own text
    this.text = "";
    this.decoder = new TextDecoder("utf-8");
  }

  // entries: as OpenAI's logprobs.content. A character may be spread over tokens: it belongs to the last of them.
  add(entries) {
    for (const entry of entries) {
      const start = this.text.length;
      this.text += entry.bytes ? this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token;
      this.tokens.push({
        text: entry.token, probability: Math.exp(entry.logprob), start, end: this.text.length,
        others: entry.top_logprobs.map((other) => ({ text: other.token, probability: Math.exp(other.logprob) })),
      });
    }
  }

  // For each character of `content` the index of its token, -1 for none; content is a part of all that was sampled.
  indexFor(content) {
    const index = new Int32Array(content.length).fill(-1);
    const offset = this.text.startsWith(content) ? 0 : this.text.lastIndexOf(content);
    if (offset < 0) return index;
    this.tokens.forEach((token, number) => {
      for (let at = Math.max(token.start, offset); at < Math.min(token.end, offset + content.length); at++) index[at - offset] = number;
    });
    return index;
  }

  // What renderMarkdown calls for each piece of text: a span for each token in it.
  emitter(content) {
    const index = this.indexFor(content);
    return (parent, text, places) => {
      for (let i = 0; i < text.length; ) {
        const number = index[places[i]];
        let end = i + 1;
        while (end < text.length && index[places[end]] === number) end += 1;
        const piece = text.slice(i, end);
        if (number < 0) parent.append(piece);
        else {
          const span = element("span", { className: "token", textContent: piece });
          span.dataset.token = number;
          span.style.setProperty("--doubt", (1 - this.tokens[number].probability).toFixed(3));
          parent.append(span);
        }
        i = end;
      }
    };
  }

  show(span) {
    const token = this.tokens[span.dataset.token];
    const box = span.getBoundingClientRect();
    const chosen = token.others.some((other) => other.text === token.text) ? token.others : [token, ...token.others].sort((a, b) => b.probability - a.probability);
    const rows = chosen.map((other) => {
      const bar = element("i");
      bar.style.width = `${Math.max(1, 100 * other.probability)}%`;
      const row = element("div", { className: other.text === token.text ? "alternative chosen" : "alternative" },
        element("code", { textContent: JSON.stringify(other.text).slice(1, -1).replaceAll(" ", "␣") }),
        element("span", { className: "bar" }, bar), element("b", { textContent: percent(other.probability) }));
      return row;
    });
    showTip(box.left - 12, box.bottom - 10, element("strong", { textContent: `Token ${Number(span.dataset.token) + 1} · ${percent(token.probability)}` }), ...rows);
  }
}

const percent = (probability) => (probability < 0.001 ? "<0.1 %" : `${(100 * probability).toFixed(1)} %`);

// Hover, touch, and the arrow keys walk over the tokens in `log`. trailOf(node): the trail of the message around it.
export function walkTokens(log, trailOf) {
  let current = null;
  const go = (span) => {
    current?.classList.remove("current");
    current = span;
    if (!span || !trailOf(span)) return hideTip();
    span.classList.add("current");
    trailOf(span).show(span);
  };
  log.addEventListener("mouseover", (event) => go(event.target.closest(".token")));
  log.addEventListener("mouseleave", () => go(null));
  log.addEventListener("blur", () => go(null));
  log.addEventListener("click", (event) => event.target.closest(".token") && go(event.target.closest(".token")));
  log.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") go(null);
    if (!move) return;
    event.preventDefault();
    const spans = [...log.querySelectorAll(".token")];
    const at = spans.indexOf(current);
    const next = spans[at < 0 ? (move > 0 ? 0 : spans.length - 1) : Math.max(0, Math.min(spans.length - 1, at + move))];
    next?.scrollIntoView({ block: "nearest" });
    go(next ?? null);
  });
}
