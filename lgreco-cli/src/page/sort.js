// A click on a column's name sorts by the column. Another click reverses the order.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const numbers = head.dataset.kind === "number";
    const now = head.getAttribute("aria-sort");
    const down = now ? now === "ascending" : numbers ? column > 0 : false;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      return numbers ? ("value" in cell.dataset ? Number(cell.dataset.value) : NaN) : cell.textContent;
    };
    const order = (a, b) => numbers ? a - b : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...body.rows].map(row => [key(row), row]);
    rows.sort(([a], [b]) => {
      // Cells without a value come last in both orders.
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return down ? order(b, a) : order(a, b);
    });
    body.append(...rows.map(([, row]) => row));
  }));
}
