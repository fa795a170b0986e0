//! A request with drafts: a case for the row after its history, and for each draft a row of its own.

use gumball_spec::Result;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::coupled::{TargetRow, check_drafts, row_after};

use crate::case::{CallerEdit, Case, Logits};
use crate::observed::Observed;

/// A draft, and the row after it with the row's mask and forced token.
#[derive(Clone, Debug)]
pub struct Node {
    /// The draft token.
    pub draft: i32,
    /// The node that it follows, or -1.
    pub parent: i32,
    /// The row after it.
    pub logits: Logits,
    /// That row's bitmask.
    pub mask: Option<Vec<u32>>,
    /// That row's forced token.
    pub forced: Option<u32>,
    /// The caller's edit of that row.
    pub hook: Option<CallerEdit>,
}

/// A request with drafts.
#[derive(Clone, Debug)]
pub struct Drafted {
    /// The request before the first draft, with the row there, its mask and its forced token.
    pub root: Case,
    /// The drafts.
    pub nodes: Vec<Node>,
    /// Whether every row is drawn from at temperature 0.
    pub greedy: bool,
    /// How the drafts are judged by probabilities, if they are, which excludes `greedy`.
    pub judgement: Option<Judgement>,
    /// The drafter's rows of probabilities, one for each row, if it has some.
    pub draft_probs: Option<Vec<f32>>,
}

/// The result of a walk: the rows it went through, by number, and each one's observed result.
pub type Walked = Vec<(usize, Observed)>;

impl Drafted {
    /// Makes a request with drafts, each with its parent and the row after it.
    #[must_use]
    pub fn new(root: Case, nodes: impl IntoIterator<Item = (i32, i32, Logits)>) -> Self {
        let node =
            |(draft, parent, logits)| Node { draft, parent, logits, mask: None, forced: None, hook: None };
        let nodes = nodes.into_iter().map(node).collect();
        Self { root, nodes, greedy: false, judgement: None, draft_probs: None }
    }

    /// Makes a request with a chain of drafts.
    #[must_use]
    pub fn chain(root: Case, nodes: impl IntoIterator<Item = (i32, Logits)>) -> Self {
        let nodes = nodes.into_iter().enumerate();
        Self::new(root, nodes.map(|(node, (draft, logits))| (draft, node as i32 - 1, logits)))
    }

    /// Returns the request with its drafts judged by probabilities.
    #[must_use]
    pub fn judged(self, judgement: Judgement, draft_probs: Option<Vec<f32>>) -> Self {
        Self { judgement: Some(judgement), draft_probs, ..self }
    }

    /// Returns the tokens and the parents of the drafts.
    #[must_use]
    pub fn tree(&self) -> (Vec<i32>, Vec<i32>) {
        self.nodes.iter().map(|node| (node.draft, node.parent)).unzip()
    }

    /// Returns the rows as the oracle takes them.
    #[must_use]
    pub fn rows(&self) -> Vec<TargetRow<'_>> {
        let Case { logits, mask, forced, hook, .. } = &self.root;
        let root =
            TargetRow { row: logits.row(), mask: mask.as_deref(), forced: *forced, hooked: hook.is_some() };
        let rows = self.nodes.iter().map(|node| TargetRow {
            row: node.logits.row(),
            mask: node.mask.as_deref(),
            forced: node.forced,
            hooked: node.hook.is_some(),
        });
        std::iter::once(root).chain(rows).collect()
    }

    /// Returns the caller's edit of a row.
    #[must_use]
    pub fn hook(&self, row: usize) -> Option<CallerEdit> {
        if row == 0 { self.root.hook } else { self.nodes[row - 1].hook }
    }

    /// Returns whether any row has an edit of the caller's.
    #[must_use]
    pub fn is_hooked(&self) -> bool {
        (0..=self.nodes.len()).any(|row| self.hook(row).is_some())
    }

    /// Returns the case that a row is after the tokens on the path to it.
    #[must_use]
    pub fn case(&self, row: usize, path: &[u32]) -> Case {
        let mut case = self.root.clone();
        case.output.extend(path);
        case.position = case.position.wrapping_add(path.len() as u32);
        if self.greedy {
            case.params.temperature = 0.0;
        }
        if row > 0 {
            let Node { logits, mask, forced, hook, .. } = self.nodes[row - 1].clone();
            (case.logits, case.mask, case.forced, case.hook) = (logits, mask, forced, hook);
        }
        case
    }

    /// Walks row by row, each sampled as a case of its own.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    pub fn walk_by_rows(&self, sample: impl Fn(&Case) -> Result<Observed>) -> Result<Walked> {
        let (drafts, parents) = self.tree();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        tree.check()?;
        check_drafts(&self.root.params, drafts.len())?;
        let (mut walked, mut path, mut next) = (Walked::new(), Vec::new(), Some(0));
        while let Some(row) = next {
            let seen = sample(&self.case(row, &path))?;
            next = row_after(&tree, &self.root.params, row, seen.token);
            path.extend(u32::try_from(seen.token));
            walked.push((row, seen));
        }
        Ok(walked)
    }
}
