// SPDX-License-Identifier: MIT
// The browser's database of conversations, one record each. What the browser refuses is an error of the promise.

const TABLE = "chats";
let opening = null;

function opened() {
  opening ??= new Promise((done, fail) => {
    const request = indexedDB.open("eaglecpp", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
  });
  opening.catch(() => { opening = null; });
  return opening;
}

// All that `work` asks of the table is done, or nothing.
async function within(mode, work) {
  const transaction = (await opened()).transaction(TABLE, mode);
  return new Promise((done, fail) => {
    transaction.onabort = () => fail(transaction.error);
    const request = work(transaction.objectStore(TABLE));
    transaction.oncomplete = () => done(request?.result);
  });
}

export const readRecords = () => within("readonly", (table) => table.getAll());

export const writeRecords = (records) => within("readwrite", (table) => { for (const one of records) table.put(one); });

export const eraseRecord = (id) => within("readwrite", (table) => table.delete(id));
