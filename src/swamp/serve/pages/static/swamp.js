// Keeps a page current by the event stream, and sends what its buttons and forms say. No other host is ever asked.

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
const notice = document.getElementById("notice");
const live = document.getElementById("live");

// --- changes: each [data-live] part is replaced only where it differs, so nothing flickers and focus stays ---------

let refreshing = false;
let again = false;

async function refresh() {
  if (refreshing) { again = true; return; }
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok && !answer.redirected) update(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch (error) {
    console.info("not refreshed:", error.message);
  } finally {
    refreshing = false;
    if (again) { again = false; soon(); }
  }
}

function update(page) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
    if (part.innerHTML !== fresh.innerHTML) part.replaceChildren(...fresh.childNodes);
    if (part.className !== fresh.className) part.className = fresh.className;
  }
}

let timer = 0;
function soon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, 250);
}

function listen() {
  const run = document.body.dataset.run ?? "";
  const query = new URLSearchParams({ after: meta("last-event"), ...(run ? { run } : { kinds: "commit,run,step,status,delivery" }) });
  const source = new EventSource(`/api/v1/events?${query}`);
  source.onopen = () => { live.dataset.state = "on"; live.textContent = "live"; };
  source.onerror = () => { live.dataset.state = "off"; live.textContent = "not connected"; };
  for (const kind of ["commit", "run", "step", "status", "delivery", "reset"]) source.addEventListener(kind, soon);
  source.addEventListener("log", (event) => append(JSON.parse(event.data)));
}

function append(said) {
  const log = document.getElementById("log");
  if (!log) return;
  const following = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  log.append(`${said.job}/${said.step} | ${said.line}\n`);  // as the lines that were there before
  if (following) log.scrollTop = log.scrollHeight;
}

// --- what a person does --------------------------------------------------------------------------------------------

async function send(method, path, body) {
  notice.textContent = "";
  const headers = { "X-CSRF-Token": meta("csrf"), "Content-Type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  const said = text ? JSON.parse(text) : {};
  if (!answer.ok) {
    notice.textContent = said.hint ? `${said.error}\n${said.hint}` : said.error ?? `the server answered ${answer.status}`;
    notice.scrollIntoView({ block: "nearest" });
    return null;
  }
  return said;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-path]");
  if (!button) return;
  if (button.dataset.sure && !confirm(button.dataset.sure)) return;
  button.disabled = true;
  const done = await send(button.dataset.method ?? "POST", button.dataset.path, JSON.parse(button.dataset.body ?? "{}"));
  button.disabled = false;
  if (done && button.dataset.then) location.assign(button.dataset.then.replace("{id}", encodeURIComponent(done.id ?? "")));
  else if (done) soon();
});

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-path]");
  if (!form) return;
  event.preventDefault();
  const inputs = {};
  for (const field of form.querySelectorAll("[data-kind]")) {
    try {
      const value = read(field);
      if (value !== undefined) inputs[field.name] = value;
    } catch (error) {
      notice.textContent = `${field.name}: ${error.message}`;
      field.focus();
      return;
    }
  }
  const done = await send("POST", form.dataset.path, { inputs });
  if (done) location.assign(`/runs/${encodeURIComponent(done.id)}`);
});

// Until here a form would be sent as a plain address, and what somebody has typed would start nothing.
for (const button of document.querySelectorAll("button[data-ready]")) button.disabled = false;

function read(field) {
  const kind = field.dataset.kind;
  if (kind === "boolean") return field.checked;
  if (field.value === "") return undefined;
  if (kind === "integer" || kind === "number") {
    const number = Number(field.value);
    if (!Number.isFinite(number)) throw new Error("not a number");
    return number;
  }
  return kind === "json" ? JSON.parse(field.value) : field.value;
}

const log = document.getElementById("log");
if (log) log.scrollTop = log.scrollHeight;
listen();
