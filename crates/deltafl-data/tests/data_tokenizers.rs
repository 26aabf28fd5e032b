//! Texts in the tokens of a tokenizer of Hugging Face.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;

use deltafl_data::import::table::{self, Dialect, TableColumns, TableFormat, TextOptions};
use deltafl_data::import::{Features, ImportTarget, Imported};

/// Pieces of words, in lower case, with the truncation and the padding that a download may have.
const TOKENIZER: &str = r###"{
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[UNK]"},
    "added_tokens": [{"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": null,
    "decoder": null,
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "play": 1, "##ing": 2, "##ed": 3, "good": 4, "bad": 5, "film": 6}}
}"###;

const FIRST: &str = "who,text,y\na,Playing a good film,yes\na,played BAD,no\nb,good good,yes\n";

fn import(folder: &std::path::Path, tokenizer: &str) -> Result<Imported, String> {
    fs::write(folder.join("tokenizer.json"), tokenizer).unwrap();
    fs::write(folder.join("t.csv"), FIRST).unwrap();
    let columns = TableColumns {
        device: Some("who".into()),
        label: "y".into(),
        texts: vec!["text".into()],
        text: TextOptions { tokenizer: Some(folder.join("tokenizer.json")), ..TextOptions::default() },
        ..TableColumns::default()
    };
    let target = ImportTarget::new(folder.join("out"));
    let format = TableFormat::Delimited(Dialect::Csv);
    table::import_files(&[folder.join("t.csv")], format, &columns, Features::Auto, &target)
        .map_err(|error| error.to_string())
}

#[cfg(not(feature = "tokenizers"))]
#[test]
fn a_build_without_tokenizers_names_the_feature() {
    let folder = tempfile::tempdir().unwrap();
    let refused = import(folder.path(), TOKENIZER).unwrap_err();
    assert!(refused.contains("this build has no tokenizers: install deltafl with --features tokenizers"));
    assert!(refused.contains("tokenizer.json") && !folder.path().join("out").exists(), "{refused}");
}

#[cfg(feature = "tokenizers")]
mod with_tokenizers {
    use deltafl::data::{BatchBuffer, DataContract, Federation, FederationIndex};

    use super::*;

    fn tokens(federation: &Federation, device: u32, examples: std::ops::Range<usize>) -> Vec<String> {
        let words: Vec<&str> = federation.words().unwrap().iter().collect();
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&federation.examples(FederationIndex(device)), examples);
        batch.inputs.tokens().iter().map(|&id| words[id as usize].to_owned()).collect()
    }

    #[test]
    fn texts_are_divided_by_the_tokenizer_and_later_texts_in_the_same_way() {
        let folder = tempfile::tempdir().unwrap();
        let imported = import(folder.path(), TOKENIZER).unwrap();
        let federation = deltafl_data::open(&imported.out).unwrap();
        let expected = [["play", "##ing", "[UNK]", "good", "film"], ["play", "##ed", "bad", "", ""]];
        assert_eq!(tokens(&federation, 0, 0..2), expected.concat());
        // The manifest and the contract contain the tokenizer: the file may be gone.
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        let contract = DataContract::from_federation(&federation);
        let contract = DataContract::from_bytes(&contract.to_bytes()).unwrap();
        fs::write(folder.path().join("l.csv"), "text,y,who\nFILM playing nothing,yes,c\n").unwrap();
        let target = ImportTarget::new(folder.path().join("later"));
        let later = table::import_like(
            &[folder.path().join("l.csv")],
            TableFormat::Delimited(Dialect::Csv),
            &contract,
            &table::LikeOptions::default(),
            &target,
        );
        let later = deltafl_data::open(&later.unwrap().out).unwrap();
        assert_eq!(tokens(&later, 0, 0..1), ["film", "play", "##ing", "[UNK]", ""]);
        assert!(contract.fit(later).is_ok());
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        for (broken, cause) in [("{}", "not a usable tokenizer.json"), ("\u{1}", "tokenizer.json")] {
            let folder = tempfile::tempdir().unwrap();
            let refused = import(folder.path(), broken).unwrap_err();
            assert!(refused.contains(cause) && !folder.path().join("out").exists(), "{refused}");
        }
    }
}
