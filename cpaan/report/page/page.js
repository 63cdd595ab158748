"use strict";

(() => {
  const root = document.documentElement;
  const { draws: kinds, views, pairs } = JSON.parse(document.getElementById("data").textContent);
  const said = document.getElementById("said");
  root.classList.add("script");

  const number = (value) => value.toFixed(1);
  const signed = (value) => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;

  // A cell has a number and, small beside it, an interval. Both come rounded.
  const fill = (cell, value, interval, text, marks) => {
    cell.children[0].textContent = value === null ? "–" : text(value);
    cell.children[1].textContent = interval === null ? "" : `±${number(interval)}`;
    for (const [name, isSet] of Object.entries(marks)) cell.classList.toggle(name, isSet);
  };

  const rowsOf = (shown) => [...shown.tBodies[0].rows];

  const valueOf = (cell) => {
    if (!cell.classList.contains("number")) return cell.textContent;
    const value = parseFloat(cell.dataset.place ?? cell.children[0]?.textContent.replace("−", "-") ?? cell.textContent);
    return Number.isNaN(value) ? null : value;
  };

  const order = (shown) => {
    const heading = shown.tHead.querySelector("[aria-sort=ascending], [aria-sort=descending]");
    shown.classList.toggle("is-sorted", heading !== null);
    const rows = rowsOf(shown).sort((a, b) => a.dataset.row - b.dataset.row);
    if (heading) {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? 1 : -1;
      const at = (row) => valueOf(row.cells[heading.cellIndex]);
      // Sorting is stable, so equal rows stay in the paper's order; what has no number comes last.
      rows.sort((a, b) => {
        const [left, right] = [at(a), at(b)];
        if (left === null || right === null) return (left === null) - (right === null);
        return sign * (typeof left === "number" ? left - right : left.localeCompare(right));
      });
    }
    shown.tBodies[0].append(...rows);
  };

  for (const shown of document.querySelectorAll("table.sortable")) {
    shown.tHead.addEventListener("click", (event) => {
      const heading = event.target.closest("th[aria-sort]");
      if (!heading || !event.target.closest("button")) return;
      // The best first, or A first; then the other way; then the paper's order again.
      const turns = heading.classList.contains("number")
        ? ["none", "descending", "ascending"]
        : ["none", "ascending", "descending"];
      const turn = turns[(turns.indexOf(heading.getAttribute("aria-sort")) + 1) % 3];
      for (const other of shown.tHead.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", turn);
      const button = heading.querySelector("button");
      const name = button.getAttribute("aria-label") ?? button.textContent;
      said.textContent = turn === "none" ? "In the paper’s order" : `Sorted by ${name}, ${turn}`;
      order(shown);
    });
  }

  const chosen = (form, name) => form.elements[name]?.value;

  const accuracies = document.getElementById("accuracies");
  const switches = document.querySelector("form[aria-label='What Table 1 shows']");
  const showAccuracies = () => {
    const [column, metric] = [chosen(switches, "column"), chosen(switches, "metric")];
    const isShown = (name) => (column === "both" ? name === "novel" || name === "all" : name === column);
    const hasPrinted = metric === "top5" && (switches.elements.printed?.checked ?? false);
    accuracies.classList.toggle("both", column === "both");
    accuracies.parentElement.classList.toggle("fits", !hasPrinted);
    for (const cell of accuracies.querySelectorAll("[data-column]")) cell.hidden = !isShown(cell.dataset.column);
    for (const cell of accuracies.querySelectorAll("[data-printed]")) {
      cell.hidden = !(hasPrinted && isShown(cell.dataset.printed));
    }
    for (const heading of accuracies.tHead.querySelectorAll("[aria-sort][hidden]")) {
      heading.setAttribute("aria-sort", "none");
    }
    const [rule, draws, minus] = [chosen(switches, "rule"), chosen(switches, "draws") ?? kinds[0], chosen(switches, "minus")];
    const view = views[`${rule} ${metric} ${draws}`];
    const compared = minus === "" ? null : pairs[rule][minus];
    for (const row of rowsOf(accuracies)) {
      const found = view[row.dataset.row];
      row.querySelector(".head").textContent = found ? found.head : "–";
      const seen = {};
      for (const cell of row.querySelectorAll("[data-column]")) {
        const name = cell.dataset.column;
        const at = (seen[name] = (seen[name] ?? -1) + 1);
        const cells = compared ? compared[row.dataset.row][name] : found?.cells[name];
        const [value, interval, mark] = cells?.[at] ?? [null, null, 0];
        const isRank = (place) => !compared && mark === place;
        const isSide = (side) => compared !== null && mark === side;
        const marks = { first: isRank(1), second: isRank(2), above: isSide(1), below: isSide(-1) };
        fill(cell, value, interval, compared ? signed : number, marks);
        // Unrounded numbers decide between accuracies, not those that are shown.
        cell.dataset.place = (compared ? value : -mark || null) ?? "none";
      }
    }
    order(accuracies);
  };
  switches.addEventListener("change", (event) => {
    // Differences are of top-5 over the first kind of draws, by some of the rules, of some columns.
    const limits = { metric: ["top5"], draws: [kinds[0]], rule: Object.keys(pairs), column: ["both", "novel", "all", "all_calibrated"] };
    for (const [name, known] of Object.entries(limits)) {
      if (switches.elements.minus.value === "" || known.includes(chosen(switches, name) ?? known[0])) continue;
      if (event.target.name === "minus") switches.elements[name].value = known[0];
      else switches.elements.minus.value = "";
    }
    showAccuracies();
  });
  switches.reset();
  showAccuracies();

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = dark === "dark" ? "light" : "dark";
  });
})();
