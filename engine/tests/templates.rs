//! Chat templates against the reference's verdicts: the same bytes, or a refusal.

use std::collections::BTreeMap;

use samebits::generate::{Chat, ChatError, Conversation};
use serde::Deserialize;

#[derive(Deserialize)]
struct Verdicts {
    tokens: BTreeMap<String, String>,
    /// JSON as text, since the order of keys is part of it.
    conversations: Vec<String>,
    arguments: Vec<Vec<String>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    /// For each conversation, what the reference renders; none where it raises.
    rendered: Vec<Option<String>>,
}

/// Of all texts that the reference renders, those that the engine will not.
const REFUSED: usize = 216;

fn verdicts() -> Verdicts {
    serde_json::from_str(include_str!("../../fixtures/goldens/templates.json")).expect("it is JSON")
}

fn conversation(json: &str, arguments: &[String]) -> Result<Conversation, ChatError> {
    let mut conversation = Conversation::parse(json)?;
    arguments.iter().try_for_each(|argument| conversation.argument(argument))?;
    Ok(conversation)
}

#[test]
fn a_template_renders_as_the_reference_does_or_not_at_all() {
    let all = verdicts();
    let tokens: Vec<(&str, &str)> =
        all.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let (mut same, mut both_refuse, mut wrong) = (0, 0, Vec::new());
    let mut refused = BTreeMap::<String, Vec<String>>::new();
    for case in &all.cases {
        let chat = Chat::from_text(&case.template, &tokens);
        for (at, want) in case.rendered.iter().enumerate() {
            let given = conversation(&all.conversations[at], &all.arguments[at]);
            match (chat.render(&given.expect("it is a conversation")), want) {
                (Ok(got), Some(want)) if got == *want => same += 1,
                (Ok(got), want) => {
                    wrong.push(format!("{:?} on {at}: {got:?}, want {want:?}", case.template));
                }
                (Err(_), None) => both_refuse += 1,
                (Err(error), Some(_)) => {
                    refused.entry(error.to_string()).or_default().push(case.template.clone());
                }
            }
        }
    }
    let count: usize = refused.values().map(Vec::len).sum();
    println!("{same} the same, {both_refuse} refused by both, {count} by the engine alone:");
    for (why, templates) in &refused {
        println!("  {} x {why}: {:?}", templates.len(), templates[0]);
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(same > 1500 && both_refuse > 0, "{same} the same, {both_refuse} refused by both");
    assert_eq!(count, REFUSED, "texts that the engine alone refuses");
}
