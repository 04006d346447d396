// Shows the dead letters of one reason that hold a text.
const rows = [...document.querySelectorAll("#letters-table tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());
const reason = document.getElementById("reason");
const text = document.getElementById("text");
const shown = document.getElementById("shown");

function filter() {
  const wanted = text.value.trim().toLowerCase();
  let count = 0;
  rows.forEach((row, i) => {
    const fits = (!reason.value || row.dataset.reason === reason.value) && texts[i].includes(wanted);
    row.hidden = !fits;
    count += fits;
  });
  shown.textContent = `${count} of ${rows.length} shown`;
}

reason.addEventListener("input", filter);
text.addEventListener("input", filter);
document.querySelector("form.filter").addEventListener("submit", (event) => event.preventDefault());
filter();
