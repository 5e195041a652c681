// Draws what a figure's data-plot has: { x: [seconds], series: [{ label, values }] }.

function colour(name) {
  const probe = document.createElement("span");
  probe.className = `ink-${name}`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function draw(figure) {
  const plot = JSON.parse(figure.dataset.plot);
  const strokes = [colour("first"), colour("second")];
  const ink = colour("muted");
  const grid = { stroke: colour("line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui" };
  const short = (value) => Intl.NumberFormat("en", { notation: "compact" }).format(value);
  const options = {
    width: figure.clientWidth - 32,
    height: 240,
    axes: [axis, { ...axis, values: (_, ticks) => ticks.map(short), size: 56 }],
    series: [
      {},
      ...plot.series.map((one, index) => ({
        label: one.label,
        stroke: strokes[index],
        fill: strokes[index].replace(")", " / 12%)").replaceAll(",", ""),
        width: 2,
        paths: uPlot.paths.stepped({ align: 1 }),
      })),
    ],
  };
  return new uPlot(options, [plot.x, ...plot.series.map((one) => one.values)], figure);
}

for (const figure of document.querySelectorAll("[data-plot]")) {
  const drawn = draw(figure);
  new ResizeObserver(() => drawn.setSize({ width: figure.clientWidth - 32, height: 240 })).observe(figure);
}
