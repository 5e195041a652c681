// The thread of the Playground. HTML comes from templates of the server, which escape it; all else is text.

const form = document.querySelector("#ask");
const nearEndPx = 200;

const isAtEnd = () => window.innerHeight + window.scrollY >= document.body.scrollHeight - nearEndPx;
const goToEnd = () => window.scrollTo(0, document.body.scrollHeight);

const part = (name, text) => {
  const made = document.createElement("div");
  made.className = name;
  made.textContent = text;
  return made;
};

const parsed = (html) => {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
};

function failure(answer, message) {
  const notice = part("notice bad", message);
  notice.setAttribute("role", "alert");
  answer.append(notice);
  goToEnd();
}

// A line of the stream: see console/answer_lines.py.
function apply(answer, [kind, ...rest]) {
  const item = (index) => answer.querySelector(`[data-item="${index}"]`);
  const steps = {
    begin: (id) => {
      answer.dataset.response = id;
      document.querySelector("#key").hidden = false;
    },
    add: (html) => answer.append(parsed(html)),
    text: (index, text) => item(index)?.querySelector("[data-live]")?.append(text),
    put: (index, html) => {
      const isOpen = item(index)?.querySelector("details")?.open ?? false;
      item(index)?.replaceWith(parsed(html));
      const details = item(index)?.querySelector("details");
      if (details) details.open = isOpen;
    },
    end: (html, id) => {
      answer.append(parsed(html));
      if (id === null) return;
      form.elements.previous.value = id;
      for (const field of form.querySelectorAll("[name=fork], [name=item]")) field.remove();
    },
  };
  steps[kind]?.(...rest);
}

async function read(body, answer) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let isOver = false;
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (unread + (value ?? "")).split("\n");
    unread = lines.pop();
    const wasAtEnd = isAtEnd();
    for (const line of lines) {
      const one = JSON.parse(line);
      isOver ||= one[0] === "end";
      apply(answer, one);
    }
    if (wasAtEnd) goToEnd();
    if (done) break;
  }
  if (!isOver) failure(answer, "The connection ended before the answer did. Ask again.");
}

async function send(fields, answer, signal) {
  const response = await fetch(form.action, { method: "POST", body: fields, signal });
  if (response.ok) return read(response.body, answer);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const alert = page.querySelector("[role=alert]")?.textContent;
  return failure(answer, alert ?? `The console answered ${response.status}. Load the page again.`);
}

if (form) {
  const [thread, question, state] = ["#thread", "#question", "#state"].map((one) => form.querySelector(one));
  const [sendButton, stopButton] = ["#send", "#stop"].map((one) => form.querySelector(one));
  let controller = null;
  if (window.matchMedia("(max-width: 900px)").matches) form.querySelector(".knobs").open = false;
  question.focus({ preventScroll: true });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (controller) return;
    const fields = new URLSearchParams(new FormData(form));
    thread.querySelector(".empty")?.remove();
    for (const sent of thread.querySelectorAll("[data-output] textarea, [data-approval] :is(input, button)")) sent.disabled = true;
    if (question.value) thread.append(part("question", question.value));
    const answer = part("answer", "");
    thread.append(answer);
    goToEnd();
    controller = new AbortController();
    [sendButton.disabled, stopButton.hidden, state.textContent] = [true, false, "Answering …"];
    const asked = question.value;
    question.value = "";
    try {
      await send(fields, answer, controller.signal);
      state.textContent = "";
    } catch (error) {
      const wasStopped = error.name === "AbortError";
      if (wasStopped && answer.dataset.response) {
        // Where a tenant lets answers go on without their client, leaving does not end them.
        fields.set("response", answer.dataset.response);
        fetch(form.dataset.stop, { method: "POST", body: fields });
      }
      state.textContent = wasStopped ? "Stopped" : "";
      if (wasStopped) {
        answer.append(part("notice warn", "Stopped. The next question does not continue this answer."));
        goToEnd();
      } else failure(answer, "The gateway cannot be reached. Ask again.");
    }
    if (answer.querySelector(".notice.bad") && !answer.querySelector(".item") && !question.value) question.value = asked;
    controller = null;
    [sendButton.disabled, stopButton.hidden] = [false, true];
    (answer.querySelector("[data-output] textarea, [data-approval] button") ?? question).focus({ preventScroll: true });
  });

  // A choice is sent with the others that the answer waits for.
  thread.addEventListener("click", (event) => {
    const button = event.target.closest("[data-approval] button");
    if (!button) return;
    const own = button.closest("[data-approval]");
    own.querySelector("input").value = button.value;
    for (const one of own.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
    const open = [...thread.querySelectorAll("[data-approval] input:enabled")].filter((one) => !one.value);
    if (!open.length) form.requestSubmit();
  });

  stopButton.addEventListener("click", () => controller?.abort());

  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  for (const field of form.querySelectorAll("[data-json]")) {
    field.addEventListener("input", () => {
      let problem = "";
      try {
        if (field.value.trim()) JSON.parse(field.value);
      } catch (error) {
        problem = `This is no JSON yet: ${error.message}`;
      }
      field.setCustomValidity(problem);
      field.setAttribute("aria-invalid", String(problem !== ""));
    });
  }
}
