//! Numbers of a screen: made here, or lying in the bytes of a file that several screens may share.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use bytemuck::Pod;

/// Bytes that several owners share, of a mapped file for instance.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Numbers, owned or in shared bytes.
#[derive(Clone)]
pub(crate) enum Stored<T> {
    Owned(Vec<T>),
    Shared { bytes: Bytes, place: Range<usize>, of: PhantomData<T> },
}

impl<T: Pod> Stored<T> {
    /// Takes numbers in shared bytes; `None` if they lie outside, or not on addresses of such numbers.
    pub(crate) fn shared(bytes: &Bytes, place: Range<usize>) -> Option<Self> {
        let there = (**bytes).as_ref().get(place.clone())?;
        bytemuck::try_cast_slice::<u8, T>(there).ok()?;
        Some(Self::Shared { bytes: Arc::clone(bytes), place, of: PhantomData })
    }
}

impl<T> From<Vec<T>> for Stored<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self::Owned(numbers)
    }
}

impl<T: Pod> Deref for Stored<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Stored::Owned(numbers) => numbers,
            Stored::Shared { bytes, place, .. } => bytemuck::cast_slice(&(**bytes).as_ref()[place.clone()]),
        }
    }
}

impl<T: Pod> DerefMut for Stored<T> {
    /// Numbers in shared bytes are copied first.
    fn deref_mut(&mut self) -> &mut [T] {
        if let Stored::Shared { .. } = self {
            *self = Stored::Owned(self.to_vec());
        }
        match self {
            Stored::Owned(numbers) => numbers,
            Stored::Shared { .. } => unreachable!("just copied"),
        }
    }
}

impl<T: Pod> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if matches!(self, Stored::Owned(_)) { "owned" } else { "shared" };
        write!(f, "{} numbers, {whose}", self.len())
    }
}
