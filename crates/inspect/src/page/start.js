// Draws every figure at the width it has, again when that changes.

function drawAll() {
  for (const place of document.querySelectorAll("[data-plot]")) figures[place.dataset.plot](place);
}

drawAll();
for (const place of document.querySelectorAll("[data-whatif]")) whatIf(place);

let drawnAt = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== drawnAt) {
    drawnAt = window.innerWidth;
    drawAll();
  }
});
