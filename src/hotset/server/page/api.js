// Talks to the server that this page came from, and asks for an API key where the server wants one.

const KEY_NAME = "hotset-key";
let key = remembered();
let asking = null;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Storage may be forbidden; then the key lives as long as the page.
function remembered() {
  try {
    return sessionStorage.getItem(KEY_NAME);
  } catch {
    return null;
  }
}

function remember(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY_NAME, value);
  } catch {
    // It stays in memory.
  }
}

// The response to a request; an ApiError with the server's own words where it is refused.
export async function request(path, options = {}) {
  for (;;) {
    const sent = key;
    const headers = { ...options.headers };
    if (sent) headers.Authorization = `Bearer ${sent}`;
    // Without a key of ours the browser may have one that it asked its user for.
    const response = await fetch(path, { ...options, headers, credentials: sent ? "omit" : "same-origin", redirect: "error" });
    if (response.status === 401) {
      if (sent === key) await askForKey(sent !== null);
      continue;
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function postJson(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, String(error.message));
  } catch {
    return new ApiError(response.status, `the server answered ${response.status}`);
  }
}

// The values of the events of a streamed answer.
export async function* events(path, body, signal) {
  const response = await postJson(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new ApiError(0, "the connection ended before the answer did");
      const blocks = (held + value).split("\n\n");
      held = blocks.pop();
      for (const block of blocks) {
        const data = dataOf(block);
        if (data === "[DONE]") return;
        const found = JSON.parse(data);
        if (found.error) throw new ApiError(found.error.code, String(found.error.message));
        yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

// Several requests that are refused at once ask once.
function askForKey(wasWrong) {
  asking ??= showKeyDialog(wasWrong).finally(() => {
    asking = null;
  });
  return asking;
}

function showKeyDialog(wasWrong) {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  if (wasWrong) document.getElementById("key-note").textContent = "The server does not accept that key.";
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  document.getElementById("key-cancel").onclick = () => dialog.close("");
  return new Promise((resolve, reject) => {
    dialog.onclose = () => {
      const given = field.value;
      field.value = "";
      if (dialog.returnValue !== "ok" || !given) {
        reject(new ApiError(401, "this server wants an API key; reload the page to give it"));
        return;
      }
      remember(given);
      resolve();
    };
  });
}
