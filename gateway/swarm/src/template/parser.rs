//! Makes a tree of the pieces and tokens of a template. Its depth and the number of its parts are bounded.

use std::collections::VecDeque;

use super::lexer::{Piece, Token, pieces, tokens};
use super::{DEPTH_MAX, PARTS_MAX, TEMPLATE_MAX, TemplateError};

/// A template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Template<'t> {
    pub(super) parts: Vec<Part<'t>>,
}

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    /// Text that is copied.
    Text(&'t [u8]),
    /// The value of a pipeline.
    Output(Pipeline<'t>),
    /// The parts of the first branch whose condition holds, or else those of the last.
    If {
        branches: Vec<(Pipeline<'t>, Vec<Part<'t>>)>,
        otherwise: Vec<Part<'t>>,
    },
}

/// Commands, each of which gets the value of the one before as its last argument.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pipeline<'t> {
    pub(super) at: usize,
    pub(super) commands: Vec<Command<'t>>,
}

/// A command of a pipeline.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'t> {
    Value(Operand<'t>),
    Call {
        at: usize,
        function: Function,
        arguments: Vec<Operand<'t>>,
    },
}

/// An operand.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operand<'t> {
    Text(Vec<u8>),
    Bool(bool),
    /// Fields of the root.
    Path {
        at: usize,
        names: Vec<&'t [u8]>,
    },
    /// A pipeline in parentheses, and fields of its value.
    Group {
        pipeline: Pipeline<'t>,
        names: Vec<&'t [u8]>,
    },
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Config,
    Env,
    Eq,
    Index,
    Join,
    Ne,
    Not,
    Or,
    Secret,
}

/// Parses a template.
pub(super) fn parse(template: &[u8]) -> Result<Template<'_>, TemplateError> {
    if template.len() > TEMPLATE_MAX {
        return Err(TemplateError::new(TEMPLATE_MAX, "it is longer than 1 MiB"));
    }
    let mut parser = Parser {
        pieces: pieces(template)?.into(),
        parts: 0,
    };
    let (parts, end) = parser.parts(0)?;
    match end {
        BlockEnd::Template => Ok(Template { parts }),
        BlockEnd::End(at) => Err(TemplateError::new(at, "\"end\" without \"if\"")),
        BlockEnd::Else(at, _) => Err(TemplateError::new(at, "\"else\" without \"if\"")),
    }
}

struct Parser<'t> {
    pieces: VecDeque<Piece<'t>>,
    /// Number of parts so far.
    parts: usize,
}

/// The end of a sequence of parts.
enum BlockEnd<'t> {
    Template,
    End(usize),
    /// With the condition of an `else if`.
    Else(usize, Option<Pipeline<'t>>),
}

type Tokens<'t> = VecDeque<(usize, Token<'t>)>;

impl<'t> Parser<'t> {
    fn count(&mut self, at: usize) -> Result<(), TemplateError> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(TemplateError::new(at, "it has too many parts"));
        }
        Ok(())
    }

    /// The parts up to the end of the block.
    fn parts(&mut self, depth: usize) -> Result<(Vec<Part<'t>>, BlockEnd<'t>), TemplateError> {
        let mut parts = Vec::new();
        while let Some(piece) = self.pieces.pop_front() {
            let (at, inside) = match piece {
                Piece::Text(b"") => continue,
                Piece::Text(text) => {
                    self.count(0)?;
                    parts.push(Part::Text(text));
                    continue;
                }
                Piece::Action { at, inside } => (at, inside),
            };
            self.count(at)?;
            if inside.trim_ascii_start().starts_with(b"/*") {
                continue;
            }
            let mut tokens: Tokens<'t> = tokens(inside, at)?.into();
            match tokens.front() {
                Some((_, Token::Word(b"if"))) => {
                    tokens.pop_front();
                    let condition = self.pipeline(at, &mut tokens, depth)?;
                    parts.push(self.branches(at, condition, depth)?);
                }
                Some((_, Token::Word(b"end"))) if tokens.len() == 1 => {
                    return Ok((parts, BlockEnd::End(at)));
                }
                Some((_, Token::Word(b"else"))) => {
                    tokens.pop_front();
                    let condition = match tokens.pop_front() {
                        None => None,
                        Some((_, Token::Word(b"if"))) => {
                            Some(self.pipeline(at, &mut tokens, depth)?)
                        }
                        Some((at, _)) => {
                            return Err(TemplateError::new(at, "unexpected word after \"else\""));
                        }
                    };
                    return Ok((parts, BlockEnd::Else(at, condition)));
                }
                Some(_) => parts.push(Part::Output(self.pipeline(at, &mut tokens, depth)?)),
                None => return Err(TemplateError::new(at, "an action is empty")),
            }
        }
        Ok((parts, BlockEnd::Template))
    }

    /// The branches of an `if` with this condition.
    fn branches(
        &mut self,
        begin: usize,
        condition: Pipeline<'t>,
        depth: usize,
    ) -> Result<Part<'t>, TemplateError> {
        let depth = deeper(depth, begin)?;
        let mut branches = Vec::new();
        let mut condition = condition;
        loop {
            let (parts, end) = self.parts(depth)?;
            branches.push((condition, parts));
            match end {
                BlockEnd::End(_) => {
                    return Ok(Part::If {
                        branches,
                        otherwise: Vec::new(),
                    });
                }
                BlockEnd::Else(_, Some(next)) => condition = next,
                BlockEnd::Else(_, None) => {
                    return match self.parts(depth)? {
                        (otherwise, BlockEnd::End(_)) => Ok(Part::If {
                            branches,
                            otherwise,
                        }),
                        (_, BlockEnd::Else(at, _)) => {
                            Err(TemplateError::new(at, "\"else\" after \"else\""))
                        }
                        (_, BlockEnd::Template) => Err(unclosed(begin)),
                    };
                }
                BlockEnd::Template => return Err(unclosed(begin)),
            }
        }
    }

    /// A pipeline that ends with the tokens.
    fn pipeline(
        &mut self,
        at: usize,
        tokens: &mut Tokens<'t>,
        depth: usize,
    ) -> Result<Pipeline<'t>, TemplateError> {
        let pipeline = self.commands(at, tokens, depth)?;
        match tokens.pop_front() {
            None => Ok(pipeline),
            Some((at, _)) => Err(TemplateError::new(at, "\")\" without \"(\"")),
        }
    }

    /// Commands up to `)` or the end of the tokens.
    fn commands(
        &mut self,
        at: usize,
        tokens: &mut Tokens<'t>,
        depth: usize,
    ) -> Result<Pipeline<'t>, TemplateError> {
        let mut commands = Vec::new();
        loop {
            commands.push(self.command(at, commands.is_empty(), tokens, depth)?);
            match tokens.front() {
                Some((_, Token::Pipe)) => drop(tokens.pop_front()),
                Some(_) | None => return Ok(Pipeline { at, commands }),
            }
        }
    }

    fn command(
        &mut self,
        at: usize,
        is_first: bool,
        tokens: &mut Tokens<'t>,
        depth: usize,
    ) -> Result<Command<'t>, TemplateError> {
        let function = match tokens.front() {
            Some((at, Token::Word(word))) if !matches!(*word, b"true" | b"false") => {
                Some((*at, *word))
            }
            Some(_) | None => None,
        };
        if let Some((at, word)) = function {
            tokens.pop_front();
            self.count(at)?;
            let function = Function::named(at, word)?;
            let mut arguments = Vec::new();
            while let Some(operand) = self.operand(tokens, depth)? {
                arguments.push(operand);
            }
            return Ok(Command::Call {
                at,
                function,
                arguments,
            });
        }
        let place = tokens.front().map_or(at, |(at, _)| *at);
        let operand = self
            .operand(tokens, depth)?
            .ok_or_else(|| TemplateError::new(place, "a value is missing"))?;
        match tokens.front() {
            Some((at, Token::Word(_) | Token::Path { .. } | Token::Text(_) | Token::Open)) => Err(
                TemplateError::new(*at, "an argument of what is no function"),
            ),
            Some((_, Token::Close | Token::Pipe)) | None if is_first => Ok(Command::Value(operand)),
            Some((_, Token::Close | Token::Pipe)) | None => Err(TemplateError::new(
                place,
                "what follows \"|\" is no function",
            )),
        }
    }

    /// The next operand; `None` at the end of the command.
    fn operand(
        &mut self,
        tokens: &mut Tokens<'t>,
        depth: usize,
    ) -> Result<Option<Operand<'t>>, TemplateError> {
        let Some((at, token)) = tokens.pop_front() else {
            return Ok(None);
        };
        self.count(at)?;
        Ok(Some(match token {
            Token::Text(text) => Operand::Text(text),
            Token::Path { names, attached: _ } => Operand::Path { at, names },
            Token::Word(b"true") => Operand::Bool(true),
            Token::Word(b"false") => Operand::Bool(false),
            Token::Word(word) => {
                // A function without arguments as an argument: none of ours makes sense there.
                Function::named(at, word)?;
                return Err(TemplateError::about(
                    at,
                    "a function as an argument needs parentheses",
                    word,
                ));
            }
            Token::Open => {
                let depth = deeper(depth, at)?;
                let pipeline = self.commands(at, tokens, depth)?;
                if !matches!(tokens.pop_front(), Some((_, Token::Close))) {
                    return Err(TemplateError::new(at, "\"(\" is not closed"));
                }
                let names = match tokens.front_mut() {
                    // `(...).Name` is a field of the group; after a blank it would be an operand of its own.
                    Some((
                        _,
                        Token::Path {
                            names,
                            attached: true,
                        },
                    )) => std::mem::take(names),
                    Some(_) | None => Vec::new(),
                };
                if !names.is_empty() {
                    tokens.pop_front();
                }
                Operand::Group { pipeline, names }
            }
            token @ (Token::Close | Token::Pipe) => {
                tokens.push_front((at, token));
                return Ok(None);
            }
        }))
    }
}

fn deeper(depth: usize, at: usize) -> Result<usize, TemplateError> {
    if depth < DEPTH_MAX {
        Ok(depth + 1)
    } else {
        Err(TemplateError::new(at, "it is nested too deeply"))
    }
}

const fn unclosed(at: usize) -> TemplateError {
    TemplateError::new(at, "\"if\" without \"end\"")
}

// === impl Function ===

impl Function {
    /// The function with this name. Functions of Go that are not supported are refused by name.
    fn named(at: usize, word: &[u8]) -> Result<Self, TemplateError> {
        Ok(match word {
            b"and" => Self::And,
            b"config" => Self::Config,
            b"env" => Self::Env,
            b"eq" => Self::Eq,
            b"index" => Self::Index,
            b"join" => Self::Join,
            b"ne" => Self::Ne,
            b"not" => Self::Not,
            b"or" => Self::Or,
            b"secret" => Self::Secret,
            b"range" | b"with" | b"define" | b"template" | b"block" | b"break" | b"continue"
            | b"nil" | b"print" | b"printf" | b"println" | b"html" | b"js" | b"urlquery"
            | b"len" | b"slice" | b"call" | b"lt" | b"le" | b"gt" | b"ge" => {
                return Err(TemplateError::about(at, "not supported", word));
            }
            b"if" | b"else" | b"end" => {
                return Err(TemplateError::about(at, "unexpected word", word));
            }
            _ => return Err(TemplateError::about(at, "there is no such function", word)),
        })
    }
}
