// Shows the values of the round under the pointer below the chart. The rest of the page needs no script.
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector(":scope > svg"), reading = figure.querySelector(".reading"), cursor = svg.querySelector(".cursor");
  const { x, series, left, right } = JSON.parse(figure.querySelector("script").textContent);
  const nearest = (points, place) => points.reduce((a, b) => (Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), place = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    if (place < left - 8 || place > right + 8) return;
    const [across, , where] = nearest(series.flatMap((one) => one.points), place);
    const there = series.map((one) => [one, nearest(one.points, across)]).filter(([, point]) => Math.abs(point[0] - across) < 1);
    reading.textContent = `${x} ${where}: ` + there.map(([one, point]) => `${one.label} ${point[3]}`.trim()).join(", ");
    cursor.innerHTML =
      `<line x1="${across}" x2="${across}" y1="12" y2="258"/>` +
      there.map(([one, point]) => `<circle class="${one.css}" cx="${point[0]}" cy="${point[1]}" r="3.5"/>`).join("");
  });
  svg.addEventListener("pointerleave", () => {
    reading.textContent = "\u00a0";
    cursor.innerHTML = "";
  });
}
// Shows a method's bands while the pointer or the keyboard is at its name in the legend.
for (const name of document.querySelectorAll(".shared [data-style]")) {
  const show = (on) => document.querySelectorAll(`.quiet.${name.dataset.style}`).forEach((band) => band.classList.toggle("on", on));
  for (const event of ["pointerenter", "focus"]) name.addEventListener(event, () => show(true));
  for (const event of ["pointerleave", "blur"]) name.addEventListener(event, () => show(false));
}
