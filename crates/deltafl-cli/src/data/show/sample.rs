//! Samples of a device's data as text.

use std::collections::BTreeMap;

use deltafl::data::{BatchBuffer, Examples, Federation, FederationIndex, InputKind};

/// The number of messages shown per device.
const MESSAGES: usize = 3;

/// The number of symbols shown of a device's text.
const SYMBOLS: usize = 160;

/// Prints readable examples of a device. Prints nothing for images.
pub(super) fn print(federation: &Federation, device: FederationIndex) {
    let examples = federation.examples(device);
    match federation.kind() {
        InputKind::Bytes { .. } => {}
        InputKind::Dense { .. } if federation.classes() == 0 => println!("     {}", value_range(&examples)),
        InputKind::Dense { .. } => println!("     {}", label_counts(federation, &examples)),
        InputKind::Tokens { .. } => {
            for i in of_all_classes(&examples, MESSAGES) {
                let class = federation.class_name(examples.label(i));
                println!("     [{class}] {}", message(federation, &examples, i));
            }
        }
        InputKind::Windows { len, .. } => println!("     {}", text(federation, &examples, len)),
    }
}

/// Returns the number of examples of each class.
fn label_counts(federation: &Federation, examples: &Examples<'_>) -> String {
    let mut counts = vec![0; federation.classes()];
    (0..examples.len()).for_each(|i| counts[examples.label(i) as usize] += 1);
    let listed = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    let parts: Vec<String> =
        listed.map(|(class, count)| format!("{}: {count}", federation.class_name(class as u32))).collect();
    format!("examples of each class  {}", parts.join("  "))
}

/// Selects examples round-robin over the classes, so that every class of the device is included.
fn of_all_classes(examples: &Examples<'_>, most: usize) -> Vec<usize> {
    // The number of earlier examples of the same class.
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, usize)> = (0..examples.len())
        .map(|i| {
            let before = seen.entry(examples.label(i)).or_default();
            *before += 1;
            (*before, i)
        })
        .collect();
    turns.sort_unstable();
    turns.into_iter().take(most.max(seen.len())).map(|(_, i)| i).collect()
}

/// Returns the range of the numeric targets.
fn value_range(examples: &Examples<'_>) -> String {
    let values = || (0..examples.len()).map(|i| examples.value(i));
    let (low, high) = (values().fold(f32::INFINITY, f32::min), values().fold(f32::NEG_INFINITY, f32::max));
    format!("numbers to predict from {low} to {high}")
}

/// Returns the words or characters of an example. Words without a spelling are shown by their
/// number.
fn message(federation: &Federation, examples: &Examples<'_>, i: usize) -> String {
    let mut buffer = BatchBuffer::default();
    let ids = buffer.gather(examples, i..i + 1).inputs.tokens().to_vec();
    if let Some(symbols) = federation.symbols() {
        return ids.iter().map(|id| symbols.chars().nth(*id as usize).unwrap_or('?')).collect();
    }
    let spelled = |id: &u32| match federation.words().and_then(|words| words.iter().nth(*id as usize)) {
        Some(word) => word.to_owned(),
        None => format!("#{id}"),
    };
    ids.iter().filter(|id| **id != 0).map(spelled).collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of a device's text.
fn text(federation: &Federation, examples: &Examples<'_>, window: usize) -> String {
    let symbols: Option<Vec<char>> = federation.symbols().map(|symbols| symbols.chars().collect());
    let drawn = |code: &u32| match &symbols {
        Some(symbols) => symbols.get(*code as usize).copied().unwrap_or('?'),
        None => char::from_digit(*code % 36, 36).unwrap_or('?'),
    };
    let mut buffer = BatchBuffer::default();
    (0..examples.len())
        .step_by(window)
        .take(SYMBOLS.div_ceil(window))
        .flat_map(|i| buffer.gather(examples, i..i + 1).inputs.tokens().iter().map(drawn).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use deltafl::data::{DeviceExamples, FederationBuilder, Split};
    use deltafl::task::Targets;

    use super::*;

    #[test]
    fn characters_are_shown_as_characters() {
        let mut builder = FederationBuilder::new("t", InputKind::Tokens { len: 3, vocabulary: 3 }, 3);
        builder.symbols(" ab");
        builder.push("x", Split::Train, DeviceExamples::Tokens(&[1, 0, 2]), &[1]).unwrap();
        let federation = builder.build();
        assert_eq!(message(&federation, &federation.examples(FederationIndex(0)), 0), "a b");
    }

    #[test]
    fn a_text_is_reconstructed_from_its_windows() {
        let mut builder = FederationBuilder::new("t", InputKind::Windows { len: 2, alphabet: 3 }, 3);
        builder.symbols(" ab");
        builder.push("x", Split::Train, DeviceExamples::Text(&[1, 2, 0, 1, 1, 2]), Targets::IN_TEXT).unwrap();
        let federation = builder.build();
        assert_eq!(text(&federation, &federation.examples(FederationIndex(0)), 2), "ab a");
    }

    #[test]
    fn messages_of_every_class_are_shown() {
        let mut builder = FederationBuilder::new("t", InputKind::Tokens { len: 1, vocabulary: 2 }, 2);
        builder.push("x", Split::Train, DeviceExamples::Tokens(&[1; 6]), &[0, 0, 0, 0, 1, 0]).unwrap();
        assert_eq!(of_all_classes(&builder.build().examples(FederationIndex(0)), 3), [0, 4, 1]);
    }

    #[test]
    fn classes_without_examples_are_omitted() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 1 }, 3);
        builder.push("x", Split::Train, DeviceExamples::Dense(&[0.0, 0.0, 0.0]), &[2, 0, 2]).unwrap();
        let federation = builder.build();
        assert!(label_counts(&federation, &federation.examples(FederationIndex(0))).ends_with("0: 1  2: 2"));
    }
}
