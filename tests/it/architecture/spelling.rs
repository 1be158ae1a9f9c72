//! A short list of misspellings that are common enough to be searched for in every run.

use std::fs;

use super::files::files;

/// Wrong, right.
const MISSPELLINGS: [(&str, &str); 42] = [
    ("accomodate", "accommodate"),
    ("accross", "across"),
    ("adress", "address"),
    ("agressive", "aggressive"),
    ("apparant", "apparent"),
    ("aquire", "acquire"),
    ("arbitary", "arbitrary"),
    ("asyncronous", "asynchronous"),
    ("availible", "available"),
    ("begining", "beginning"),
    ("beleive", "believe"),
    ("comand", "command"),
    ("commited", "committed"),
    ("compatability", "compatibility"),
    ("consistant", "consistent"),
    ("containter", "container"),
    ("definately", "definitely"),
    ("dependancy", "dependency"),
    ("existance", "existence"),
    ("explicitely", "explicitly"),
    ("familar", "familiar"),
    ("guarentee", "guarantee"),
    ("immediatly", "immediately"),
    ("independant", "independent"),
    ("intial", "initial"),
    ("lenght", "length"),
    ("manifset", "manifest"),
    ("neccessary", "necessary"),
    ("occured", "occurred"),
    ("occurence", "occurrence"),
    ("paramter", "parameter"),
    ("persistant", "persistent"),
    ("preceed", "precede"),
    ("priviledge", "privilege"),
    ("recieve", "receive"),
    ("reponse", "response"),
    ("seperate", "separate"),
    ("succesful", "successful"),
    ("supress", "suppress"),
    ("threshhold", "threshold"),
    ("transfered", "transferred"),
    ("wich ", "which "),
];

#[test]
fn no_common_misspelling_is_in_the_repository() {
    let mut wrong = Vec::new();
    for path in files(&[".rs", ".md", ".toml", ".proto", ".service", ".yaml", "quickstart", "run"]) {
        if path.ends_with("it/architecture/spelling.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a file of the repository is text");
        for (number, line) in text.to_lowercase().lines().enumerate() {
            for (misspelling, right) in MISSPELLINGS {
                if line.contains(misspelling) {
                    wrong.push(format!("{}:{}: {misspelling} is {right}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
