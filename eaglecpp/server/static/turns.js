// SPDX-License-Identifier: MIT
// The turns of the conversation: questions, answers, and buttons.
import { answer as ask, views } from "./answers.js";
import { $, copyText, html, Icon, IconButton, set, state } from "./base.js";
import { showTurn, versions } from "./branches.js";
import { chat, endEdit, saveChat } from "./chats.js";
import { Files } from "./files.js";
import { colour, render as layOut } from "./render.js";
import { change } from "./settings.js";
import { Component, render } from "./vendor/preact.mjs";

const MIN_GAIN = 1.05;  // minimum speed-up that is shown as a badge

export function Turn({ turn, isLeft, ...more }) {
  const isUser = turn.role === "user";
  return html`
    <div class="turn ${turn.role} ${isLeft ? "left" : ""}" role="group" aria-label=${isUser ? "You" : "Answer"}>
      <${isUser ? Question : Answers} turn=${turn} ...${more}/>
    </div>`;
}

const Question = ({ turn }) => html`
  <h2 class="unseen">You</h2>
  <${Files} ...${turn}/>
  <div class="text">${turn.content}</div>
  <div class="tools">
    <${IconButton} icon="pencil" label="Edit" onClick=${() => edit(turn)}/>
    <${IconButton} icon="copy" label="Copy the question" onClick=${() => copyText(turn.content)}/>
    <${Versions} turn=${turn}/>
  </div>`;

function Answers({ turn, index, isLast }) {
  const isPair = turn.answers.length > 1, disabled = state.running.has(state.current);
  return html`
    ${!isPair && html`<h2 class="unseen">Answer</h2>`}
    <div class=${isPair ? "pair" : ""}>${turn.answers.map((answer) => html`<${Answer} key=${answer} answer=${answer} isNamed=${isPair} again=${() => ask(index)}/>`)}</div>
    <div class="tools">
      <${IconButton} icon="copy" label="Copy" onClick=${() => copyText(turn.answers[0].content)}/>
      <${IconButton} icon="refresh-cw" label="Regenerate" disabled=${disabled} onClick=${() => ask(index)}/>
      ${!isPair && html`<${IconButton} icon="pencil" label="Edit the answer" disabled=${disabled} onClick=${() => edit(turn)}/>`}
      ${!isPair && isLast && html`<${IconButton} icon="step-forward" label="Continue" disabled=${disabled} onClick=${() => ask(index + 1, turn)}/>`}
      <${Versions} turn=${turn}/>
    </div>`;
}

// Shows the version switch of an edited or regenerated turn, such as ‹ 2 of 3 ›.
function Versions({ turn }) {
  const all = versions(chat(), turn), at = all.indexOf(turn);
  const step = (icon, label, to) => html`<${IconButton} icon=${icon} label=${label} disabled=${!to || state.running.has(state.current)} onClick=${() => turnTo(to)}/>`;
  return all.length > 1 && html`
    ${step("chevron-left", "Earlier version", all[at - 1])}<span class="soft">${at + 1} of ${all.length}</span>${step("chevron-right", "Later version", all[at + 1])}`;
}

function turnTo(turn) {
  endEdit();
  showTurn(chat(), turn);
  saveChat();
  set();
}

// Puts the turn's text into the input field. The conversation stays unchanged until the user sends the text.
function edit(turn) {
  $("question").value = turn.content ?? turn.answers[0].content;
  set({ editing: turn, files: turn.files ?? [], images: turn.images ?? [] });
  $("question").focus();
}

class Answer extends Component {
  render({ answer, isNamed, again }) {
    const { content, thinking, runs, error, figures, speedup, draft } = answer, isLive = state.live.has(answer);
    views.set(answer, this);
    return html`
      <article class="answer">
        ${isNamed && html`<h2 class="soft">${draft ? "With drafting" : "Without drafting"}</h2>`}
        ${thinking && html`<details><summary>Thinking</summary><div>${thinking}</div></details>`}
        <${Text} content=${content} runs=${runs} isColoured=${state.settings.colour} isLive=${isLive} isWaiting=${isLive && !content && !thinking}/>
        ${error && html`<p class="bad" role="alert">${error} <button type="button" disabled=${state.running.has(state.current)} onClick=${again}>Try again</button></p>`}
        <p class="figures soft">${speedup >= MIN_GAIN && html`<${Gain} ...${answer}/>`}${figures}</p>
      </article>`;
  }
}

// Shows rendered Markdown. The text is drawn again only if it has changed.
class Text extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => next[name] !== this.props[name]);
  }

  componentDidMount() {
    const { content, runs, isColoured, isLive } = this.props;
    this.node.replaceChildren(layOut(content, isLive));
    if (isColoured && runs.some((run) => run[1])) colour(this.node, content, runs);
    this.node.querySelectorAll("pre").forEach(frame);
  }

  componentDidUpdate = this.componentDidMount;

  render({ isWaiting }) {
    return html`<div class="text ${isWaiting ? "waiting" : ""}" ref=${(node) => { this.node = node; }}/>`;
  }
}

// Adds a bar with the language and a copy button above a code block.
function frame(pre) {
  const language = /language-(\S+)/.exec(pre.querySelector("code")?.className)?.[1] ?? "text";
  const box = Object.assign(document.createElement("div"), { className: "code" });
  pre.replaceWith(box);
  render(html`<div class="bar soft"><span>${language}</span><${IconButton} icon="copy" label="Copy code" onClick=${() => copyText(pre.textContent)}/></div>`, box);
  box.append(pre);
}

// Shows the badge that switches the marking of drafted text on and off.
function Gain({ speedup, drafts }) {
  const isShown = state.settings.colour;
  const title = `Drafting: about ${speedup.toFixed(2)} times the speed without it, ${drafts}. ${isShown ? "Hides" : "Shows"} the drafted text.`;
  return html`
    <button type="button" class="badge" aria-pressed=${isShown} title=${title} onClick=${() => change({ colour: !isShown })}><${Icon} name="zap"/>${speedup.toFixed(1)}× faster</button>`;
}
