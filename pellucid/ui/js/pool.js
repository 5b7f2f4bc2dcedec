// The KV pool as a map: a square for each block, in the colours and letters of the requests that hold it.

import { chip, colourOf, css, element, hideTip, inkOn, lettersOf, plural, prepare, showTip } from "./look.js";

const MOST_HEIGHT = 300;
const LEAST_SHOWN = 128;

export class PoolMap {
  constructor(state, openStory) {
    this.state = state;
    this.openStory = openStory;
    this.canvas = document.getElementById("pool");
    this.cursor = -1; // the block that the keyboard is on
    this.canvas.addEventListener("mousemove", (e) => this.point(this.blockAt(e.offsetX, e.offsetY), e.clientX, e.clientY));
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("blur", () => { this.cursor = -1; hideTip(); });
    this.canvas.addEventListener("click", (e) => this.open(this.blockAt(e.offsetX, e.offsetY)));
    this.canvas.addEventListener("keydown", (e) => this.key(e));
  }

  draw() {
    const { state } = this;
    // Blocks are handed out from the lowest on, so what was never used is the end of the pool: it is told, not drawn.
    const wanted = Math.max(LEAST_SHOWN, state.highest + 1);
    const width = this.canvas.clientWidth;
    if (!width) return; // the other view is shown
    let cell = 26;
    while (cell > 4 && Math.ceil(wanted / Math.floor(width / cell)) * cell > MOST_HEIGHT) cell -= 1;
    this.columns = Math.max(1, Math.floor(width / cell));
    this.cell = width / this.columns; // whole rows from edge to edge
    const shown = (this.shown = Math.min(state.numBlocks, Math.ceil(wanted / this.columns) * this.columns));
    const { context } = prepare(this.canvas, Math.max(1, Math.ceil(shown / this.columns)) * this.cell);
    for (let id = 0; id < shown; id++) this.drawBlock(context, id);
    this.tell(shown);
  }

  drawBlock(context, id) {
    const { cell, state } = this;
    const gap = cell > 9 ? 2 : 1;
    const [x, y, size] = [(id % this.columns) * cell, Math.floor(id / this.columns) * cell, cell - gap];
    const block = state.blocks.get(id);
    context.save();
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, size, size, Math.min(4, size / 4));
    const users = this.usersOf(block);
    if (!block) {
      context.fillStyle = css("--free");
      context.fill();
    } else if (!users.length) {
      context.fillStyle = css("--cached");
      context.fill();
    } else {
      context.save();
      context.clip();
      context.globalAlpha = block.owners.size ? 1 : 0.34; // kept in the cache, held by nobody
      const slice = size / users.length;
      users.forEach((user, index) => {
        context.fillStyle = colourOf(user);
        context.fillRect(x + 0.5 + index * slice, y + 0.5, slice + 0.5, size);
      });
      context.restore();
      if (users.length > 1 && cell > 6) {
        context.lineWidth = cell > 12 ? 2 : 1;
        context.strokeStyle = css("--ink");
        context.globalAlpha = block.owners.size > 1 ? 1 : 0.5;
        context.stroke();
      }
      if (cell >= 16) {
        context.globalAlpha = 1;
        context.font = `600 ${Math.round(cell * 0.42)}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        const text = users.length === 1 ? lettersOf(users[0]) : `×${users.length}`;
        context.fillStyle = block.owners.size ? inkOn(colourOf(users.at(-1))) : css("--ink");
        if (users.length > 1 && block.owners.size) {
          context.lineWidth = 3;
          context.strokeStyle = "rgba(0,0,0,.65)";
          context.strokeText(text, x + size / 2 + 0.5, y + size / 2 + 1);
          context.fillStyle = "#fff";
        }
        context.fillText(text, x + size / 2 + 0.5, y + size / 2 + 1);
      }
    }
    if (id === this.cursor) {
      context.globalAlpha = 1;
      context.lineWidth = 3;
      context.strokeStyle = css("--accent");
      context.strokeRect(x + 1, y + 1, size - 1, size - 1);
    }
    context.restore();
  }

  usersOf(block) {
    return (block?.users ?? []).map((id) => this.state.requests.get(id)).filter(Boolean).slice(0, 4);
  }

  // The same in words: the legend with its counts, what is not drawn, and who shares what.
  tell(shown) {
    const { state } = this;
    const counts = state.poolCounts();
    const legend = document.getElementById("pool-legend");
    legend.replaceChildren(
      ...[["used", "in use"], ["shared", "shared"], ["cached", "cached"], ["free", "free"]].map(([key, label]) => {
        const item = element("li", { className: `k-${key}` }, element("b", { textContent: counts[key].toLocaleString("en") }), ` ${label}`);
        item.dataset.count = counts[key];
        return item;
      }),
    );
    const rest = state.numBlocks - shown;
    const size = `A block holds ${state.blockSize} tokens.`;
    document.getElementById("pool-rest").textContent = !state.numBlocks ? "" : rest > 0 ? `${size} ${plural(rest, "more block")}, not used so far, ${rest === 1 ? "is" : "are"} not drawn.` : size;
    this.canvas.setAttribute("aria-label", `KV pool: ${counts.used} blocks in use, ${counts.shared} of them shared, ${counts.cached} cached, ${counts.free} free. Arrow keys walk over the blocks.`);
    const groups = state.sharing().slice(0, 6);
    document.getElementById("sharing").replaceChildren(
      ...groups.map((group) => {
        const users = group.users.map((id) => state.requests.get(id));
        const item = element("li", {}, ...users.map(chip), ` share ${plural(group.ids.length, "block")} (${ranges(group.ids)}) = ${plural(group.ids.length * state.blockSize, "token")}`);
        if (!group.held) item.append(", kept in the cache");
        item.dataset.blocks = group.ids.length;
        item.dataset.users = users.length;
        return item;
      }),
    );
  }

  blockAt(x, y) {
    const column = Math.floor(x / this.cell);
    const id = Math.floor(y / this.cell) * this.columns + column;
    return column < this.columns && id >= 0 && id < this.shown ? id : -1;
  }

  point(id, x, y) {
    if (id < 0) return hideTip();
    const block = this.state.blocks.get(id);
    const users = this.usersOf(block);
    const what = !block ? "free" : block.owners.size > 1 ? `shared by ${block.owners.size} requests` : block.owners.size ? "in use" : "cached, held by nobody";
    const more = block?.cached ? `can be found; hit ${plural(block.hits, "time")}` : block ? "not full yet: others can't use it" : "";
    showTip(x, y, element("strong", { textContent: `Block ${id}: ${what}` }), element("div", {}, ...users.map(chip)), element("div", { textContent: more }));
  }

  open(id) {
    const user = this.usersOf(this.state.blocks.get(id)).at(-1);
    if (user) this.openStory(`requests/${encodeURIComponent(user.id)}`);
  }

  key(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns }[event.key];
    if (!move && event.key !== "Enter") return;
    event.preventDefault(); // an Enter would also press the button that the dialog focuses
    if (!move) return this.open(this.cursor);
    this.cursor = Math.max(0, Math.min(this.shown - 1, this.cursor < 0 ? 0 : this.cursor + move));
    this.draw();
    const box = this.canvas.getBoundingClientRect();
    this.point(this.cursor, box.left + ((this.cursor % this.columns) + 1) * this.cell, box.top + (Math.floor(this.cursor / this.columns) + 1) * this.cell);
  }
}

// 0–7, 12
function ranges(ids) {
  const parts = [];
  for (let i = 0; i < ids.length; ) {
    let end = i;
    while (ids[end + 1] === ids[end] + 1) end += 1;
    parts.push(end > i ? `${ids[i]}–${ids[end]}` : `${ids[i]}`);
    i = end + 1;
  }
  return parts.length > 5 ? `${parts.slice(0, 5).join(", ")}, …` : parts.join(", ");
}
