//! The tree that drafts form: which row follows which draft, and what stands before it.
//!
//! Row 0 is the root's, at the end of the history; row i + 1 is node i's, after the drafts on the path
//! to it.

use crate::error::{Error, Result};

/// The largest number of drafts of one request in one step.
pub const MAX_DRAFTS: usize = 64;

/// The parent of a node that stands directly after the history.
pub const ROOT: i32 = -1;

/// The draft tokens of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftTree<'a> {
    /// The token of each node. One outside the vocabulary, [`NONE`](crate::NONE) included, equals nothing.
    pub drafts: &'a [i32],
    /// The parent of each node: [`ROOT`] or a node before it. `None`: each node follows the one before it, a
    /// chain.
    pub parents: Option<&'a [i32]>,
}

impl<'a> DraftTree<'a> {
    /// Makes a chain, each draft after the one before it.
    #[must_use]
    pub fn chain(drafts: &'a [i32]) -> Self {
        Self { drafts, parents: None }
    }

    /// Checks that it is a tree, of as many nodes as a request may have.
    ///
    /// A parent lies before its children, so a node in a cycle, or one that the root does not lead to, always
    /// shows as a parent out of range.
    ///
    /// # Errors
    /// - [`Error::Length`] for more than [`MAX_DRAFTS`] drafts, or if there is not one parent for each.
    /// - [`Error::OutOfRange`] for a parent that is neither [`ROOT`] nor a node before.
    pub fn check(&self) -> Result<()> {
        let n = self.drafts.len();
        if n > MAX_DRAFTS {
            return Err(Error::length("drafts", n, format!("at most {MAX_DRAFTS} drafts for a request")));
        }
        let Some(parents) = self.parents else { return Ok(()) };
        if parents.len() != n {
            return Err(Error::length("parents", parents.len(), format!("one for each of {n} drafts")));
        }
        for (node, parent) in parents.iter().enumerate() {
            if !(i64::from(ROOT)..node as i64).contains(&i64::from(*parent)) {
                let value = format!("{parent} for node {node}");
                return Err(Error::out_of_range(
                    "parents",
                    value,
                    format!("in -1..{node}, a node before it"),
                ));
            }
        }
        Ok(())
    }

    /// Checks that each draft follows the one before it.
    ///
    /// # Errors
    /// - The errors of [`DraftTree::check`].
    /// - [`Error::OutOfRange`] for a parent that is not the node before.
    pub fn check_chain(&self) -> Result<()> {
        self.check()?;
        for (node, parent) in self.parents.unwrap_or(&[]).iter().enumerate() {
            if *parent != node as i32 - 1 {
                let value = format!("{parent} for node {node}");
                return Err(Error::out_of_range("parents", value, format!("{} in a chain", node as i32 - 1)));
            }
        }
        Ok(())
    }

    /// Returns the number of target rows: the root's, and one for each draft.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.drafts.len() + 1
    }

    /// Returns the row that a node's draft is judged by, which is its parent's.
    #[must_use]
    pub fn row_before(&self, node: usize) -> usize {
        // A parent is at least -1.
        self.parents.map_or(node, |parents| (parents[node] + 1) as usize)
    }

    /// Returns the nodes whose drafts a row judges, in turn.
    pub fn children(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        // A node lies after its parent, whose row has the number of the node after it.
        (row..self.drafts.len()).filter(move |node| self.row_before(*node) == row)
    }

    /// Returns the row of the first child of a row that has a token; none equals a token below 0.
    #[must_use]
    pub fn row_after(&self, row: usize, token: i32) -> Option<usize> {
        let equal = |node: &usize| token >= 0 && self.drafts[*node] == token;
        self.children(row).find(equal).map(|node| node + 1)
    }
}

/// Returns the parents of the nodes of a tree that is held as links between rows, as SGLang and TokenSpeed
/// hold it: for each row, the root's first, the row of its first child and that of its next sibling, -1 for
/// none.
///
/// A link leads to a row after its own, so no links form a cycle.
///
/// # Errors
/// - [`Error::Length`] if there is not one of both for each row, the root's included.
/// - [`Error::OutOfRange`] for a link that is neither -1 nor a row after its own, for a row that two links
///   lead to or none, and for a sibling of the root.
pub fn parents_of(first_child: &[i32], next_sibling: &[i32]) -> Result<Vec<i32>> {
    let rows = first_child.len();
    if rows == 0 {
        return Err(Error::length("first_child", 0, "one for the root and one for each draft"));
    }
    if next_sibling.len() != rows {
        return Err(Error::length("next_sibling", next_sibling.len(), format!("one per row, {rows}")));
    }
    let mut parents: Vec<Option<i32>> = vec![None; rows];
    for row in 0..rows {
        // A link to this row lies before it, so its parent is known by now.
        let parent = parents[row];
        if row > 0 && parent.is_none() {
            let value = format!("none to row {row}");
            return Err(Error::out_of_range("first_child and next_sibling", value, "a link to each draft"));
        }
        let links = [
            ("first_child", first_child[row], Some(row as i32 - 1)),
            ("next_sibling", next_sibling[row], parent),
        ];
        for (parameter, to, parent) in links {
            let refused =
                |allowed: &str| Err(Error::out_of_range(parameter, format!("{to} for row {row}"), allowed));
            match (usize::try_from(to).ok().filter(|to| (row + 1..rows).contains(to)), parent) {
                (None, _) if to == ROOT => {}
                (None, _) => return refused(&format!("in {}..{rows}, or -1", row + 1)),
                (Some(_), None) => return refused("-1: the root has no sibling"),
                (Some(to), _) if parents[to].is_some() => {
                    return refused("a row that no other link leads to");
                }
                (Some(to), parent) => parents[to] = parent,
            }
        }
    }
    Ok(parents.into_iter().skip(1).map(|parent| parent.expect("each draft has a link")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_rows_are_a_tree_or_refused() {
        // Row 0 has the children 1 and 3, row 1 the children 2 and 4.
        assert_eq!(parents_of(&[1, 2, -1, -1, -1], &[-1, 3, 4, -1, -1]), Ok(vec![-1, 0, -1, 0]));
        assert_eq!(parents_of(&[-1], &[-1]), Ok(vec![]));
        let refused = |first_child: &[i32], next_sibling: &[i32]| {
            parents_of(first_child, next_sibling).unwrap_err().to_string()
        };
        for (first_child, next_sibling, message) in [
            (
                &[][..],
                &[][..],
                "first_child has length 0, but must have one for the root and one for each draft",
            ),
            (&[1, -1], &[-1], "next_sibling has length 1, but must have one per row, 2"),
            (&[1, 0], &[-1, -1], "first_child is 0 for row 1, but must be in 2..2, or -1"),
            (&[1, -1], &[-1, 1], "next_sibling is 1 for row 1, but must be in 2..2, or -1"),
            (&[2, -1], &[-1, -1], "first_child is 2 for row 0, but must be in 1..2, or -1"),
            (&[i32::MIN, -1], &[-1, -1], "first_child is -2147483648 for row 0, but must be in 1..2, or -1"),
            (&[-1, -1], &[1, -1], "next_sibling is 1 for row 0, but must be -1: the root has no sibling"),
            (
                &[-1, -1],
                &[-1, -1],
                "first_child and next_sibling is none to row 1, but must be a link to each draft",
            ),
            (
                &[1, 2, -1],
                &[-1, 2, -1],
                "next_sibling is 2 for row 1, but must be a row that no other link leads to",
            ),
        ] {
            assert_eq!(refused(first_child, next_sibling), message);
        }
    }

    #[test]
    fn what_is_no_tree_is_an_error_that_names_the_node() {
        let check = |parents: &[i32]| {
            let drafts = vec![5; parents.len()];
            DraftTree { drafts: &drafts, parents: Some(parents) }.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[-1, -1, 0, 2, 0]), Ok(()));
        let cycle = "parents is 1 for node 0, but must be in -1..0, a node before it";
        assert_eq!(check(&[1, 0]), Err(cycle.to_owned()));
        let itself = "parents is 1 for node 1, but must be in -1..1, a node before it";
        assert_eq!(check(&[-1, 1]), Err(itself.to_owned()));
        let orphan = "parents is 9 for node 2, but must be in -1..2, a node before it";
        assert_eq!(check(&[-1, 0, 9]), Err(orphan.to_owned()));
        assert!(check(&[i32::MIN]).is_err() && check(&[i32::MAX]).is_err());
        assert_eq!(check(&[-1; 64]), Ok(()));
        let many = "drafts has length 65, but must have at most 64 drafts for a request";
        assert_eq!(check(&[-1; 65]), Err(many.to_owned()));
        let short = DraftTree { drafts: &[1, 2], parents: Some(&[-1]) }.check().unwrap_err().to_string();
        assert_eq!(short, "parents has length 1, but must have one for each of 2 drafts");
        let tree = DraftTree { drafts: &[1, 2], parents: Some(&[-1, -1]) }.check_chain().unwrap_err();
        assert_eq!(tree.to_string(), "parents is -1 for node 1, but must be 0 in a chain");
    }

    #[test]
    fn the_first_child_with_the_token_is_followed() {
        let drafts = [4, 7, 4, 7, 9];
        let tree = DraftTree { drafts: &drafts, parents: Some(&[-1, -1, -1, 0, 2]) };
        assert_eq!(
            (tree.row_after(0, 4), tree.row_after(0, 7), tree.row_after(0, 9)),
            (Some(1), Some(2), None)
        );
        assert_eq!((tree.row_after(1, 7), tree.row_after(3, 9)), (Some(4), Some(5)));
        assert_eq!(tree.children(0).collect::<Vec<_>>(), [0, 1, 2]);
        let chain = DraftTree::chain(&[3, -1, 3]);
        assert_eq!(
            (chain.row_after(0, 3), chain.row_after(1, -1), chain.row_after(3, 3)),
            (Some(1), None, None)
        );
    }
}
