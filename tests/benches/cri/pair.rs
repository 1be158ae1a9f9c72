//! Corresponding measurements of both sides.

use crate::failure::Failure;

/// A measurement of both sides, taken one right after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<T> {
    /// Containerd's own CRI plugin.
    pub(crate) theirs: T,
    /// Switchyard.
    pub(crate) ours: T,
}

impl<T> Pair<T> {
    /// A measurement of each side, one right after the other. Who comes first alternates from round to round.
    pub(crate) fn in_turns(
        round: u32,
        theirs: impl Future<Output = Result<T, Failure>>,
        ours: impl Future<Output = Result<T, Failure>>,
    ) -> impl Future<Output = Result<Self, Failure>> {
        let theirs = Box::pin(theirs);
        let ours = Box::pin(ours);
        async move {
            if round.is_multiple_of(2) {
                let theirs = theirs.await?;
                Ok(Self {
                    theirs,
                    ours: ours.await?,
                })
            } else {
                let ours = ours.await?;
                Ok(Self {
                    theirs: theirs.await?,
                    ours,
                })
            }
        }
    }
}
