// The last steps: the tokens of each above, prefill and decode apart; below, where its time went.

import { css, element, hideTip, ms, plural, prepare, showTip } from "./look.js";

const BAR = 7;
const PHASES = ["schedule", "forward", "sample", "output"];

export class Timeline {
  constructor(state, openStory) {
    this.state = state;
    this.openStory = openStory;
    this.canvas = document.getElementById("steps");
    this.shown = [];
    this.cursor = -1;
    this.canvas.addEventListener("mousemove", (e) => this.point(this.shown[Math.floor(e.offsetX / BAR)], e.clientX, e.clientY));
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("blur", () => { this.cursor = -1; hideTip(); });
    this.canvas.addEventListener("click", (e) => this.open(this.shown[Math.floor(e.offsetX / BAR)]));
    this.canvas.addEventListener("keydown", (e) => this.key(e));
  }

  draw() {
    if (!this.canvas.clientWidth) return; // the other view is shown
    const { context, width, height } = prepare(this.canvas, 150);
    const steps = (this.shown = this.state.steps.slice(-Math.floor(width / BAR)));
    const half = 78; // the base line of the tokens; the phases hang below it
    // A square root, so that a decode of one token is seen beside a prompt of hundreds.
    const most = Math.max(4, ...steps.map((step) => step.prefill + step.decode));
    const tokens = (n) => ((half - 8) * Math.sqrt(n)) / Math.sqrt(most);
    const longest = Math.max(0.001, ...steps.map((step) => step.phases.reduce((a, b) => a + b)));
    context.fillStyle = css("--line");
    context.fillRect(0, half, width, 1);
    steps.forEach((step, index) => {
      const x = index * BAR;
      const total = tokens(step.prefill + step.decode);
      const decode = step.decode ? (total * step.decode) / (step.prefill + step.decode) : 0;
      context.fillStyle = css("--decode");
      context.fillRect(x, half - decode, BAR - 1.5, decode);
      context.fillStyle = css("--prefill");
      context.fillRect(x, half - total, BAR - 1.5, total - decode);
      let y = half + 3;
      step.phases.forEach((seconds, phase) => {
        const length = ((height - half - 6) * seconds) / longest;
        context.fillStyle = css(`--${PHASES[phase]}`);
        context.fillRect(x, y, BAR - 1.5, length);
        y += length;
      });
      if (index === this.cursor) {
        context.strokeStyle = css("--accent");
        context.lineWidth = 2;
        context.strokeRect(x - 1, 1, BAR, height - 2);
      }
    });
    const last = steps.at(-1);
    document.getElementById("steps-note").textContent = last
      ? `Step ${last.step}: ${plural(last.requests, "request")}, ${plural(last.prefill + last.decode, "token")} in ${ms(last.phases.reduce((a, b) => a + b))}. Highest bar ${plural(most, "token")} (square-root scale), longest step ${ms(longest)}. Click a step to read it.`
      : "No step yet.";
  }

  point(step, x, y) {
    if (!step) return hideTip();
    const rows = PHASES.map((phase, index) => element("div", { textContent: `${phase} ${ms(step.phases[index])}` }));
    showTip(x, y, element("strong", { textContent: `Step ${step.step}` }), element("div", { textContent: `${plural(step.requests, "request")}; prefill ${step.prefill}, decode ${step.decode} tokens` }), ...rows);
  }

  open(step) {
    if (step) this.openStory(`steps/${step.step}`);
  }

  key(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if ((!move && event.key !== "Enter") || !this.shown.length) return;
    event.preventDefault(); // an Enter would also press the button that the dialog focuses
    if (!move) return this.open(this.shown[this.cursor]);
    this.cursor = Math.max(0, Math.min(this.shown.length - 1, this.cursor < 0 ? this.shown.length - 1 : this.cursor + move));
    this.draw();
    const box = this.canvas.getBoundingClientRect();
    this.point(this.shown[this.cursor], box.left + this.cursor * BAR, box.top + 60);
  }
}
