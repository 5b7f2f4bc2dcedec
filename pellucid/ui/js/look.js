// What the panels share: a colour and letters for each request, canvases that are sharp, and one tooltip.

// Paul Tol's "bright" scheme and two of his "vibrant": told apart also by colour-blind eyes; letters say it again.
const PALETTE = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988"];
const DARK_INK = new Set(["#ccbb44", "#66ccee", "#ee7733", "#ee6677"]);

export const colourOf = (request) => PALETTE[request.number % PALETTE.length];
export const inkOn = (colour) => (DARK_INK.has(colour) ? "#111" : "#fff");

// A, B, ... Z, AA, AB, ...
export function lettersOf(request) {
  let text = "";
  for (let n = request.number + 1; n > 0; n = Math.floor((n - 1) / 26)) text = String.fromCharCode(65 + ((n - 1) % 26)) + text;
  return text;
}

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export function chip(request) {
  const colour = colourOf(request);
  const node = element("span", { className: "chip", textContent: lettersOf(request) });
  node.style.background = colour;
  node.style.color = inkOn(colour);
  return node;
}

// A context scaled for the screen; drawing is in CSS pixels. height: of the canvas.
export function prepare(canvas, height) {
  const width = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let styles = null;
export const refreshStyles = () => (styles = null);
export function css(name) {
  styles ??= getComputedStyle(document.documentElement);
  return styles.getPropertyValue(name).trim();
}

const tip = () => document.getElementById("tip");

// content: text or nodes; beside the point (x, y) of the window.
export function showTip(x, y, ...content) {
  const node = tip();
  node.replaceChildren(...content);
  node.hidden = false;
  const { width, height } = node.getBoundingClientRect();
  node.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
  node.style.top = `${y + 16 + height > innerHeight ? Math.max(8, y - height - 10) : y + 16}px`;
}

export const hideTip = () => (tip().hidden = true);

export const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
export const ms = (seconds) => (seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`);
