"""The look of the report's page."""

STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --soft: #5d6670; --back: #ffffff; --box: #f5f6f8; --line: #dfe3e8;
  --good: #1a7f4b; --bad: #c03221; --warning: #96650a; --none: #6b7480; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --soft: #9aa4af; --back: #14171a; --box: #1d2125;
  --line: #32383f; --good: #52c48a; --bad: #ff8272; --warning: #e3b04b; --none: #98a2ad; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
header, main { max-width: 72rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
h3 small { font-weight: 400; color: var(--soft); margin-left: .4rem; }
h4 { font-size: .85rem; margin: .8rem 0 .2rem; color: var(--soft); }
.summary { font-size: 1.05rem; margin: .3rem 0 0; }
header.good .summary { color: var(--good); } header.bad .summary { color: var(--bad); }
header.warning .summary { color: var(--warning); }
.counts { list-style: none; display: flex; flex-wrap: wrap; gap: .8rem; padding: 0; margin: 1.2rem 0; }
.counts li { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; min-width: 7rem; }
.counts b { display: block; font-size: 1.4rem; line-height: 1.2; }
.good b { color: var(--good); } .bad b { color: var(--bad); } .none b { color: var(--none); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
section { background: var(--box); border-left: 4px solid var(--none); border-radius: .3rem; padding: .9rem 1.1rem;
  margin: 0 0 .9rem; }
section.bad { border-color: var(--bad); } section.warning { border-color: var(--warning); }
.reason { margin: .2rem 0 .6rem; font-weight: 600; overflow-wrap: anywhere; }
details { margin-top: .5rem; } summary { cursor: pointer; color: var(--soft); }
pre, code { font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { margin: 0; } i { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
.checks th { text-align: left; color: var(--soft); font-weight: 500; }
.checks th, .checks td { padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.checks td:nth-child(-n+4), .checks .number { white-space: nowrap; } .checks .number { text-align: right; }
.hosts td:nth-child(4) { white-space: normal; overflow-wrap: anywhere; }
.checks small { color: var(--soft); }
tr.good .outcome { color: var(--good); } tr.bad .outcome { color: var(--bad); font-weight: 600; }
tr.warning .outcome { color: var(--warning); } tr.none .outcome { color: var(--none); }
a { color: inherit; }
.transcript { margin-top: .4rem; } .transcript td { padding: .1rem .6rem .1rem 0; vertical-align: top; }
.transcript td:not(:last-child) { width: 1%; white-space: nowrap; }
.transcript td:first-child { color: var(--soft); font: 12.5px/1.5 ui-monospace, monospace; text-align: right; }
.transcript .note code { color: var(--soft); font-style: italic; }
"""
