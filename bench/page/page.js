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

offerToSave();
openToPrint();
