"use strict";
const width = 1200, character = 7;
const frames = [...document.querySelectorAll("#frames > g")];
const byId = (id) => document.getElementById(id);
let start = 0, size = whole;

function draw() {
  for (const frame of frames) {
    const x = Number(frame.dataset.x), w = Number(frame.dataset.w);
    const left = Math.max(x, start), right = Math.min(x + w, start + size);
    if (right <= left) {
      frame.style.display = "none";
      continue;
    }
    frame.style.display = "";
    const scale = width / size;
    const [rect, text] = [frame.querySelector("rect"), frame.querySelector("text")];
    const pixels = (right - left) * scale;
    rect.setAttribute("x", (left - start) * scale);
    rect.setAttribute("width", pixels);
    text.setAttribute("x", (left - start) * scale + 3);
    const name = frame.dataset.n, room = Math.floor(pixels / character);
    text.textContent = name.length <= room ? name : room < 3 ? "" : name.slice(0, room - 2) + "..";
  }
  byId("reset").setAttribute("visibility", size < whole ? "visible" : "hidden");
}

function zoom(x, w) {
  [start, size] = [x, Math.max(w, 1)];
  draw();
}

function search() {
  const words = prompt("Functions whose names match this regular expression:", "");
  if (words === null) return;
  let pattern;
  try {
    pattern = new RegExp(words);
  } catch (error) {
    alert(error.message);
    return;
  }
  mark(words === "" ? null : pattern);
}

function mark(pattern) {
  const found = [];
  for (const frame of frames) {
    const matches = pattern !== null && pattern.test(frame.dataset.n);
    frame.classList.toggle("m", matches);
    if (matches) found.push([Number(frame.dataset.x), Number(frame.dataset.w)]);
  }
  // A frame in another one that was found counts once.
  found.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  let sum = 0, end = 0;
  for (const [x, w] of found) {
    if (x >= end) {
      sum += w;
      end = x + w;
    }
  }
  const share = (100 * sum / Math.max(whole, 1)).toFixed(2);
  byId("found").textContent = pattern === null ? " " : "found: " + share + "%";
}

for (const frame of frames) {
  frame.addEventListener("click", () => zoom(Number(frame.dataset.x), Number(frame.dataset.w)));
  frame.addEventListener("mouseover", () => {
    byId("details").textContent = frame.querySelector("title").textContent;
  });
}
byId("reset").addEventListener("click", () => zoom(0, whole));
byId("search").addEventListener("click", search);
window.addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key === "f") {
    event.preventDefault();
    search();
  }
});
