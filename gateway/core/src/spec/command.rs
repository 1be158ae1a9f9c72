//! The command line of a task.

/// The words of a task's command line, as Kubernetes composes them: `command` replaces the image's entrypoint and drops
/// its command, `args` replaces the image's command.
///
/// An entrypoint of one empty word is none: a Dockerfile's `ENTRYPOINT [""]` takes away that of the image below, and so
/// does such a command, which drops the image's command too.
#[must_use]
pub fn command_line(
    (command, args): (&[String], &[String]),
    (entrypoint, cmd): (&[String], &[String]),
) -> Vec<String> {
    let (head, tail) = match (command.is_empty(), args.is_empty()) {
        (false, _) => (command, args),
        (true, false) => (entrypoint, args),
        (true, true) => (entrypoint, cmd),
    };
    let head: &[String] = match head {
        [word] if word.is_empty() => &[],
        head => head,
    };
    head.iter().chain(tail).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entrypoint_of_one_empty_word_is_none() {
        let words = |text: &str| -> Vec<String> {
            let list = text.split_terminator(',');
            list.map(|word| word.trim().to_owned()).collect()
        };
        for (command, args, entrypoint, cmd, expected) in [
            ("", "", "a", "b", "a,b"),
            ("", "c", "a", "b", "a,c"),
            ("d", "", "a", "b", "d"),
            ("d", "c", "a", "b", "d,c"),
            ("", "", " ,", "b", "b"),
            ("", "c", " ,", "b", "c"),
            ("d", "", " ,", "b", "d"),
            (" ,", "c", "a", "b", "c"),
            (" ,", "", "a", "b", ""),
            ("", "", " ,", "", ""),
            // Only such an entrypoint: other empty words are words.
            ("", "", " ,x", "b", " ,x,b"),
            ("", "", "a", " ,", "a, ,"),
        ] {
            let [command, args, entrypoint, cmd, expected] =
                [command, args, entrypoint, cmd, expected].map(words);
            let found = command_line((&command, &args), (&entrypoint, &cmd));
            assert_eq!(
                found, expected,
                "{command:?} {args:?} {entrypoint:?} {cmd:?}"
            );
        }
    }
}
