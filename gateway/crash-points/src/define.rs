//! The macro that makes enums of the list of crash points.

/// Actions of a test at a crash point.
pub(crate) enum Fault {
    /// Kill the process.
    Kill,
    /// Kill the process, or make the sequence fail.
    Fail,
}

/// Generates the enums from a list of operations and their crash points, each with what a test can do there.
macro_rules! crash_points {
    ($($(#[$about:meta])* $operation:ident { $($(#[$doc:meta])* $point:ident: $fault:ident,)+ })+) => {
        /// A sequence of effects, with a crash point after each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[$about])* $operation,)+
        }

        /// A point in a sequence, named after the effect just before it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CrashPoint {
            $($($(#[$doc])* $point,)+)+
        }

        impl Operation {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$operation,)+];

            /// Its crash points, in their order. One that several operations reach belongs to the first of them.
            #[must_use]
            pub const fn crash_points(self) -> &'static [CrashPoint] {
                match self {
                    $(Self::$operation => &[$(CrashPoint::$point,)+],)+
                }
            }
        }

        impl CrashPoint {
            /// All crash points.
            pub const ALL: &[Self] = &[$($(Self::$point,)+)+];

            /// Returns whether a test can make the sequence fail here, beside killing the process.
            #[must_use]
            pub const fn can_fail(self) -> bool {
                let fault = match self {
                    $($(Self::$point => Fault::$fault,)+)+
                };
                matches!(fault, Fault::Fail)
            }
        }
    };
}
