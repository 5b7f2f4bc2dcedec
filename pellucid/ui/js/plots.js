// Small lines over the last two minutes, a second a point. Each says its latest value in words, too.

import { css, element, ms, prepare } from "./look.js";

const SPAN_S = 120;

function quantile(values, q) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}

const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

// Each: a title, and lines as [colour, value of a second (null: no point), label].
const PLOTS = [
  { title: "Time to first token", format: ms, lines: [["--prefill", (s) => quantile(s.ttft, 0.5), "median"]], dots: true },
  { title: "Between tokens", format: ms, lines: [["--decode", (s) => quantile(s.itl, 0.5), "median"], ["--sample", (s) => quantile(s.itl, 0.95), "95th percentile"]] },
  { title: "Throughput", format: (v) => `${v.toFixed(0)} tokens/s`, lines: [["--accent", (s) => s.tokens, "tokens"]], gap: 0 },
  { title: "Prefix cache hits", format: percent, lines: [["--forward", (s) => (s.asked ? s.found / s.asked : null), "share of prompt tokens"]], dots: true, most: 1 },
  { title: "KV memory", format: percent, lines: [["--accent", (s, state) => s.used / (state.numBlocks || 1), "in use"], ["--cached-line", (s, state) => s.cached / (state.numBlocks || 1), "cached"]], gap: "hold" },
];

export class Plots {
  constructor(state) {
    this.state = state;
    this.figures = PLOTS.map((plot) => {
      const canvas = element("canvas", { role: "img" });
      const value = element("b");
      const figure = element("figure", {}, element("figcaption", {}, plot.title, value), canvas);
      document.getElementById("plots").append(figure);
      return { plot, canvas, value };
    });
  }

  draw() {
    const end = Math.floor(this.state.now);
    for (const { plot, canvas, value } of this.figures) {
      if (!canvas.clientWidth) continue; // the other view is shown
      const lines = plot.lines.map(([colour, of]) => [colour, this.points(of, end, plot.gap)]);
      const all = lines.flatMap(([, points]) => points.map((point) => point[1]));
      const most = plot.most ?? Math.max(...all, 1e-9) * 1.15;
      const { context, width, height } = prepare(canvas, 64);
      context.fillStyle = css("--line");
      context.fillRect(0, height - 1, width, 1);
      const x = (t) => width - ((end - t) * width) / SPAN_S - 3;
      const y = (v) => height - 3 - ((height - 8) * v) / most;
      for (const [colour, points] of lines) {
        context.strokeStyle = context.fillStyle = css(colour);
        context.lineWidth = 1.75;
        context.beginPath();
        points.forEach(([t, v], index) => (index && t - points[index - 1][0] <= (plot.dots ? 8 : 2) ? context.lineTo(x(t), y(v)) : context.moveTo(x(t), y(v))));
        context.stroke();
        for (const [t, v] of plot.dots || points.length < 3 ? points : points.slice(-1)) {
          context.beginPath();
          context.arc(x(t), y(v), 2.4, 0, 7);
          context.fill();
        }
      }
      const last = lines[0][1].at(-1);
      value.textContent = last ? plot.format(last[1]) : "–";
      canvas.setAttribute("aria-label", `${plot.title}: ${last ? plot.format(last[1]) : "nothing yet"}`);
    }
  }

  // gap: what a second without a word counts as: 0 (a rate), "hold" (a level goes on), or nothing at all.
  points(of, end, gap) {
    const points = [];
    const bridge = (from, to) => {
      const value = gap === "hold" ? points.at(-1)[1] : 0;
      if (gap !== undefined && from <= to) points.push([from, value], [to, value]);
    };
    for (const second of this.state.seconds) {
      if (second.t >= end) continue; // it is not over
      const value = of(second, this.state);
      if (value === null) continue;
      if (points.length) bridge(points.at(-1)[0] + 1, second.t - 1);
      points.push([second.t, value]);
    }
    if (points.length) bridge(points.at(-1)[0] + 1, end - 1);
    return points;
  }
}
