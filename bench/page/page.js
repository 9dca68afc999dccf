"use strict";
// The data of the page: a document of bench/page/embedded.py.
async function readData() {
  const element = document.getElementById("data");
  const text = element.textContent;
  return JSON.parse(element.dataset.encoding === "gzip" ? new TextDecoder().decode(await unpack(text)) : text);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function offerToSave() {
  const button = document.getElementById("save");
  if (!button) return; // the page of a job has none
  button.hidden = false;
  button.addEventListener("click", async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(await readData())], { type: "application/json" }));
    link.download = "run.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// A printed page shows what a reader could open.
function openToPrint() {
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of closed) each.open = false;
  });
}

// -- the map of pairs

// Colours of a pair beside the median of the pairs of its kind, from much worse to much better (blue to red avoids red with green).
const STEPS = [
  [0.5, "#67001f", "below 50 % of the median"],
  [0.8, "#d6604d", "50 to 80 %"],
  [0.9, "#f4a582", "80 to 90 %"],
  [1.1, "#f2f2f2", "90 to 110 %"],
  [1.25, "#92c5de", "110 to 125 %"],
  [Infinity, "#2166ac", "above 125 %"],
];
const UNKNOWN = "#8a8a8a";

// A column of rows (bench/page/embedded.py: _columns), as an array of numbers or values.
async function column(rows, name) {
  if (name in rows.same) return new Array(rows.num).fill(rows.same[name]);
  const stored = rows.columns[name];
  if (Array.isArray(stored)) return stored;
  if (stored.by === "over") return (await column(rows, "median_s")).map((median) => stored.constant / median);
  if ("whole" in stored) return new Uint16Array((await unpack(stored.whole)).buffer);
  if ("steps" in stored) {
    const steps = new Uint16Array((await unpack(stored.steps)).buffer);
    return Array.from(steps, (step) => (step ? stored.low * 1.001 ** (step - 1) : null));
  }
  const packed = (await unpack(stored.of)).buffer;
  const kinds = stored.bytes === 4 ? new Uint32Array(packed) : new Uint16Array(packed);
  return Array.from(kinds, (kind) => stored.kinds[kind]);
}

// The worst value of each pair, by places in the map; NaN if a pair was not measured.
async function grid(map, rows) {
  const names = ["src", "dst", "mode", "payload_bytes", "verified", map.column];
  const [src, dst, mode, bytes, verified, values] = await Promise.all(names.map((name) => column(rows, name)));
  const side = map.order.length;
  const place = new Int32Array(side);
  map.order.forEach((rank, index) => (place[rank] = index));
  const cells = new Float64Array(side * side).fill(NaN);
  const put = (from, to, value) => {
    const at = place[from] * side + place[to];
    if (Number.isNaN(cells[at]) || (map.more ? value < cells[at] : value > cells[at])) cells[at] = value;
  };
  for (let row = 0; row < rows.num; row += 1) {
    const fits = mode[row] === map.mode && bytes[row] === map.bytes && verified[row] !== false;
    if (!fits || values[row] === null || src[row] === null) continue;
    put(src[row], dst[row], values[row] * map.scale);
    if (map.both) put(dst[row], src[row], values[row] * map.scale);
  }
  return cells;
}

// A pair is compared with the pairs of its kind (bench/page/pair_map.py: _kind_of), because their links are the same.
function share(map, value, from, to) {
  const [a, b] = [map.order[from], map.order[to]];
  const kind = map.hosts[a] === map.hosts[b] ? 0 : map.racks[a] === map.racks[b] ? 1 : 2;
  return map.more ? value / map.middles[kind] : map.middles[kind] / value;
}

function colour(map, value, from, to) {
  return Number.isNaN(value) ? UNKNOWN : STEPS.find(([most]) => share(map, value, from, to) < most)[1];
}

// All cells at once, a pixel each: one fillRect per cell takes seconds.
function image(map, cells) {
  const side = map.order.length;
  const canvas = new OffscreenCanvas(side, side);
  const pixels = new Uint32Array(side * side);
  const inks = new Map();
  for (let cell = 0; cell < cells.length; cell += 1) {
    const ink = colour(map, cells[cell], Math.floor(cell / side), cell % side);
    if (!inks.has(ink)) inks.set(ink, 0xff000000 | parseInt(ink.slice(5, 7) + ink.slice(3, 5) + ink.slice(1, 3), 16));
    pixels[cell] = inks.get(ink);
  }
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), side), 0, 0);
  return canvas;
}

async function drawMap(canvas, data) {
  const map = JSON.parse(canvas.dataset.map);
  const cells = await grid(map, data.rows[map.rows]);
  const side = map.order.length;
  const size = Math.max(1, Math.floor(512 / side));
  canvas.width = canvas.height = side * size;
  const context = canvas.getContext("2d");
  const says = document.getElementById(`${canvas.id}-says`);
  let chosen = [0, Math.min(1, side - 1)];

  const paint = (from, to) => {
    context.fillStyle = colour(map, cells[from * side + to], from, to);
    context.fillRect(to * size, from * size, size, size);
  };
  context.imageSmoothingEnabled = false;
  context.drawImage(image(map, cells), 0, 0, side * size, side * size);

  const describe = (from, to) => {
    const value = cells[from * side + to];
    const [a, b] = [map.order[from], map.order[to]];
    const what = Number.isNaN(value)
      ? "not measured"
      : `${value.toPrecision(4)} ${map.unit}, ${(100 * share(map, value, from, to)).toFixed(1)} % of the median of such pairs`;
    says.textContent = `rank ${a} (${map.hosts[a]}) to rank ${b} (${map.hosts[b]}): ${what}`;
  };
  const choose = (from, to) => {
    paint(...chosen);
    chosen = [Math.max(0, Math.min(side - 1, from)), Math.max(0, Math.min(side - 1, to))];
    context.strokeStyle = "#000";
    context.lineWidth = Math.max(1, size / 8);
    const inset = context.lineWidth / 2;
    context.strokeRect(chosen[1] * size + inset, chosen[0] * size + inset, size - 2 * inset, size - 2 * inset);
    describe(...chosen);
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = canvas.getBoundingClientRect().width / side;
    choose(Math.floor(event.offsetY / cell), Math.floor(event.offsetX / cell));
  });
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    choose(chosen[0] + move[0], chosen[1] + move[1]);
  });
  canvas.addEventListener("focus", () => choose(...chosen));
  legend(document.querySelector(`[data-legend="${canvas.id}"]`));
  canvas.dataset.drawn = "yes";
}

function legend(list) {
  for (const [ink, words] of [...STEPS.map(([, ink, words]) => [ink, words]), [UNKNOWN, "not measured"]]) {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = ink;
    item.append(swatch, words);
    list.append(item);
  }
}

async function drawMaps() {
  const maps = [...document.querySelectorAll("canvas[data-map]")];
  if (maps.length === 0) return;
  const data = await readData();
  for (const canvas of maps) await drawMap(canvas, data);
}

offerToSave();
openToPrint();
drawMaps();
