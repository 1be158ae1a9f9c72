//! The meaning of commands: a minimal shell that can exit, fail, write, read and handle signals.

use std::collections::BTreeMap;
use std::time::Duration;

use switchyard_core::spec::Signal;

/// A parsed command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command {
    /// A supported program.
    Program(Program),
    /// An unknown command, which simulates a long-running program.
    Unknown,
    /// A missing executable: anything below `/no/such`.
    Missing,
}

/// The steps of a program, and how it reacts to signals.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    traps: BTreeMap<u8, Trap>,
    /// True if it leaves a child behind that holds the streams open.
    pub(crate) leaves_child: bool,
}

/// One step of a program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Writes to standard output, or to standard error.
    Write { text: Vec<u8>, stderr: bool },
    /// Writes this many zero bytes to standard output.
    Zeros(u64),
    /// Copies standard input to standard output.
    Cat,
    /// Waits.
    Sleep(Duration),
    /// Never ends by itself.
    Forever,
    /// Sets the exit code of the last command.
    Status(i32),
    /// Exits.
    Exit(i32),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Trap {
    Ignore,
    Exit(i32),
}

/// The course of a program without streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Run {
    /// Until it is killed.
    Forever,
    /// Until it exits with this code, after this time.
    Ends { after: Duration, code: i32 },
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    ToStderr,
    Next,
    Background,
}

impl Command {
    /// Parses a command line.
    pub(crate) fn parse(line: &[String]) -> Self {
        let Some((name, args)) = line.split_first() else {
            return Self::Missing;
        };
        if name.starts_with("/no/such") {
            return Self::Missing;
        }
        let mut program = Program::default();
        let understood = match (base_name(name), args) {
            ("sh" | "ash", [flag, script, ..]) if flag == "-c" => {
                program.script(script);
                true
            }
            ("ignore-term", _) => {
                program.traps.insert(Signal::TERM.number(), Trap::Ignore);
                program.steps.push(Step::Forever);
                true
            }
            _ => program.statement(line, false),
        };
        if understood {
            Self::Program(program)
        } else {
            Self::Unknown
        }
    }
}

impl Program {
    /// A program that runs until it is killed.
    pub(crate) fn endless() -> Self {
        Self {
            steps: vec![Step::Forever],
            ..Self::default()
        }
    }

    /// A program that exits at once.
    pub(crate) fn exiting(code: i32) -> Self {
        Self {
            steps: vec![Step::Exit(code)],
            ..Self::default()
        }
    }

    /// Returns its course without streams; `stdin_open` is whether a read blocks or returns the end of file.
    pub(crate) fn course(&self, stdin_open: bool) -> Run {
        let mut after = Duration::ZERO;
        let mut code = 0;
        for step in &self.steps {
            match step {
                Step::Write { .. } | Step::Zeros(_) => code = 0,
                Step::Cat if stdin_open => return Run::Forever,
                Step::Cat => code = 0,
                Step::Sleep(time) => (after, code) = (after.saturating_add(*time), 0),
                Step::Forever => return Run::Forever,
                Step::Status(status) => code = *status,
                Step::Exit(status) => {
                    return Run::Ends {
                        after,
                        code: *status,
                    };
                }
            }
        }
        Run::Ends { after, code }
    }

    /// The exit code if this signal kills it.
    pub(crate) fn ends_by(&self, signal: Signal) -> Option<i32> {
        let number = signal.number();
        if signal == Signal::KILL {
            return Some(128 + i32::from(number));
        }
        match self.traps.get(&number) {
            Some(Trap::Ignore) => None,
            Some(Trap::Exit(code)) => Some(*code),
            // CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH do not end a process.
            None if matches!(number, 17..=23 | 28) => None,
            None => Some(128 + i32::from(number)),
        }
    }

    fn script(&mut self, script: &str) {
        let mut words: Vec<String> = Vec::new();
        let mut stderr = false;
        let mut background = Duration::ZERO;
        for token in tokens(script).into_iter().chain([Token::Next]) {
            match token {
                Token::Word(word) => words.push(word),
                Token::ToStderr => stderr = true,
                Token::Background => {
                    let mut child = Self::default();
                    child.statement(&words, stderr);
                    if let Run::Ends { after, .. } = child.course(false) {
                        background = background.max(after);
                    }
                    self.leaves_child = true;
                    words.clear();
                }
                Token::Next => {
                    match words.first().map(String::as_str) {
                        None => {}
                        Some("wait") => {
                            self.leaves_child = false;
                            self.steps.push(Step::Sleep(background));
                        }
                        Some("while" | "until") => {
                            self.steps.push(Step::Forever);
                            return;
                        }
                        Some(name) => {
                            let name = name.to_owned();
                            if !self.statement(&words, stderr) {
                                let text = format!("sh: {name}: not found\n").into_bytes();
                                self.steps.extend([
                                    Step::Write { text, stderr: true },
                                    Step::Status(127),
                                ]);
                            }
                        }
                    }
                    words.clear();
                    stderr = false;
                }
            }
        }
    }

    /// Adds the steps of one simple command; returns false if the command is unknown.
    fn statement(&mut self, words: &[String], stderr: bool) -> bool {
        let Some((name, args)) = words.split_first() else {
            return true;
        };
        let number = |text: Option<&String>| text.and_then(|text| text.parse::<i32>().ok());
        match base_name(name) {
            "true" | ":" => self.steps.push(Step::Status(0)),
            "false" => self.steps.push(Step::Status(1)),
            "exit" => self
                .steps
                .push(Step::Exit(number(args.first()).unwrap_or(0) & 0xff)),
            "exec" => return self.statement(args, stderr),
            "echo" => {
                let (args, end) = if args.first().is_some_and(|arg| arg == "-n") {
                    (&args[1..], "")
                } else {
                    (args, "\n")
                };
                let text = format!("{}{end}", args.join(" ")).into_bytes();
                self.steps.push(Step::Write { text, stderr });
            }
            "cat" => match args.first() {
                None => self.steps.push(Step::Cat),
                Some(file) => {
                    let text = format!("cat: can't open '{file}': No such file or directory\n")
                        .into_bytes();
                    self.steps
                        .extend([Step::Write { text, stderr: true }, Step::Status(1)]);
                }
            },
            "sleep" => {
                let time = args.first().and_then(|text| text.parse::<f64>().ok());
                match time.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
                    Some(time) => self.steps.push(Step::Sleep(time)),
                    None => self.steps.push(Step::Status(1)),
                }
            }
            "head" => match args {
                [flag, count, file] if flag == "-c" && file == "/dev/zero" => {
                    self.steps
                        .push(count.parse().map_or(Step::Status(1), Step::Zeros));
                }
                _ => return false,
            },
            "trap" => {
                let Some((action, signals)) = args.split_first() else {
                    return true;
                };
                let trap = match action.strip_prefix("exit") {
                    Some(code) => Trap::Exit(code.trim().parse().unwrap_or(0)),
                    None => Trap::Ignore,
                };
                let signals = signals.iter().filter_map(|name| Signal::parse(name));
                self.traps
                    .extend(signals.map(|signal| (signal.number(), trap)));
            }
            _ => return false,
        }
        true
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn tokens(script: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = script.chars().peekable();
    while let Some(next) = chars.next() {
        let token = match next {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                word.extend(chars.by_ref().take_while(|c| *c != next));
                continue;
            }
            ';' | '\n' => Token::Next,
            '&' if chars.next_if_eq(&'&').is_some() => Token::Next,
            '&' => Token::Background,
            '>' if chars.next_if_eq(&'&').is_some() => {
                // Only the redirection to standard error is supported.
                chars.next();
                Token::ToStderr
            }
            blank if blank.is_whitespace() => {
                found.extend(word.take().map(Token::Word));
                continue;
            }
            other => {
                word.get_or_insert_default().push(other);
                continue;
            }
        };
        found.extend(word.take().map(Token::Word));
        found.push(token);
    }
    found.extend(word.map(Token::Word));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(line: &[&str]) -> Program {
        match Command::parse(&line.iter().map(ToString::to_string).collect::<Vec<_>>()) {
            Command::Program(program) => program,
            Command::Unknown | Command::Missing => panic!("{line:?} is not understood"),
        }
    }

    fn ends(line: &[&str]) -> Run {
        program(line).course(false)
    }

    #[test]
    fn simple_commands_exit_as_in_a_shell() {
        let at_once = |code| Run::Ends {
            after: Duration::ZERO,
            code,
        };
        assert_eq!(ends(&["true"]), at_once(0));
        assert_eq!(ends(&["/bin/false"]), at_once(1));
        assert_eq!(ends(&["exit", "9"]), at_once(9));
        assert_eq!(ends(&["sh", "-c", "exit 3"]), at_once(3));
        assert_eq!(ends(&["sh", "-c", "echo a; false && exit 4"]), at_once(4));
        assert_eq!(ends(&["sh", "-c", "nginx"]), at_once(127));
        assert_eq!(ends(&["cat"]), at_once(0));
        assert_eq!(program(&["cat"]).course(true), Run::Forever);
        assert_eq!(
            ends(&["sh", "-c", "sleep 0.5; exit 2"]),
            Run::Ends {
                after: Duration::from_millis(500),
                code: 2
            }
        );
        assert_eq!(
            ends(&["sh", "-c", "while true; do sleep 1; done"]),
            Run::Forever
        );
    }

    #[test]
    fn trap_handles_any_signal_but_sigkill() {
        let deaf = program(&["ignore-term"]);
        assert_eq!(
            (deaf.ends_by(Signal::TERM), deaf.ends_by(Signal::KILL)),
            (None, Some(137))
        );
        let listening = program(&["sh", "-c", "trap 'exit 7' TERM; sleep 1000 & wait"]);
        assert_eq!(listening.ends_by(Signal::TERM), Some(7));
        assert_eq!(
            listening.course(false),
            Run::Ends {
                after: Duration::from_secs(1000),
                code: 0
            }
        );
        assert_eq!(program(&["sleep", "9"]).ends_by(Signal::TERM), Some(143));
    }

    #[test]
    fn quotes_and_redirection_are_parsed() {
        let echo = program(&["sh", "-c", "echo -n 'a b' \"c\" >&2"]);
        assert_eq!(
            echo.steps,
            [Step::Write {
                text: b"a b c".to_vec(),
                stderr: true
            }]
        );
    }

    #[test]
    fn unknown_programs_are_rejected_and_marked_paths_missing() {
        assert_eq!(
            Command::parse(&["nginx".into(), "-g".into()]),
            Command::Unknown
        );
        assert_eq!(
            Command::parse(&["/no/such/executable".into()]),
            Command::Missing
        );
    }
}
