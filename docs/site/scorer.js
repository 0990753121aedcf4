// The order of search results: pages whose title or a heading has all the words come first, and guides come before
// references, appendices and logs. Sphinx itself gives equal marks to every page with one of the words in a heading.
var LOWERED = [
  [/^(log|changelog|contributing|genindex)$/, 16],
  [/^(reference\/|published-runs$|validation-runs$|paper-cells$|pairs$|decisions$|design$|contract$)/, 14],
  [/^(habits|glossary)$/, 9],
  [/^(notebooks\/|readme$|index$|howto\/index$|traces$|paper$)/, 11],
  [/^(faq|users)$/, 4],
  [/^(neighbours$|model\/|validation$|published$|uneven$|engine\/measured$)/, 3],
];

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: ([page, title, anchor, descr, score, filename, kind]) => {
    const lowered = LOWERED.find(([pages]) => pages.test(page))?.[1] ?? 0;
    if (kind === "object") return score - lowered;
    const { asked, titles, headings } = Scorer.read();
    const named = kind === "title" && anchor ? [title.split(" > ").slice(1).join(" > ")] : headings[page] || [];
    const best = Math.max(0, ...named.map((heading) => Scorer.share(asked, heading)));
    return 5 + 12 * Scorer.share(asked, titles[page] || "") + 8 * best - lowered;
  },

  // The part of the words that a heading has, squared: all of them in one heading are worth more than halves of two.
  share: (asked, heading) => {
    const has = new Set(Scorer.words(heading));
    return asked.length ? (asked.filter((word) => has.has(word)).length / asked.length) ** 2 : 0;
  },

  words: (text) => {
    const stemmer = new Stemmer();
    const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
    return words.map((word) => stemmer.stemWord(word));
  },

  // What was asked, and each page's title and headings; read once for all results of a search.
  read: () => {
    const query = new URLSearchParams(location.search).get("q") || "";
    if (Scorer.known?.query === query) return Scorer.known;
    const { docnames, titles, alltitles } = Search._index;
    const headings = {};
    for (const [heading, places] of Object.entries(alltitles))
      for (const [file] of places) (headings[docnames[file]] ||= []).push(heading);
    const own = Object.fromEntries(docnames.map((page, file) => [page, titles[file]]));
    return (Scorer.known = { query, asked: Scorer.words(query), titles: own, headings });
  },
};
