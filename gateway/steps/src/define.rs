//! The macro that makes enums of the list of steps.

/// What a test can do at a step.
pub(crate) enum Fault {
    /// Kill the process.
    Kill,
    /// Kill the process, or make the sequence fail.
    Fail,
}

/// Generates the enums from a list of operations and their steps, each with what a test can do there.
macro_rules! steps {
    ($($(#[$about:meta])* $operation:ident { $($(#[$doc:meta])* $step:ident: $fault:ident,)+ })+) => {
        /// A sequence of steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $($(#[$about])* $operation,)+
        }

        /// A point in a sequence, named after the effect just before it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Step {
            $($($(#[$doc])* $step,)+)+
        }

        impl Operation {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$operation,)+];

            /// Its steps, in their order. A step that several operations take belongs to the first of them.
            #[must_use]
            pub const fn steps(self) -> &'static [Step] {
                match self {
                    $(Self::$operation => &[$(Step::$step,)+],)+
                }
            }
        }

        impl Step {
            /// All steps.
            pub const ALL: &[Self] = &[$($(Self::$step,)+)+];

            /// Whether a test can make the sequence fail at the step, beside killing the process.
            #[must_use]
            pub const fn can_fail(self) -> bool {
                let fault = match self {
                    $($(Self::$step => Fault::$fault,)+)+
                };
                matches!(fault, Fault::Fail)
            }
        }
    };
}
