//! Conversion of data to the category and class numbers of a contract.
//!
//! A device that has only some of the categories and classes numbers them differently.

use std::collections::HashMap;

use super::{ContractMismatch, DataContract, features};
use crate::data::{
    DeviceExamples, FeatureColumn, Federation, FederationBuilder, InputKind, StoredTargets, TargetKind,
};

/// The maximum number of values of the encoded examples. It bounds the memory that a server's
/// contract can require from a device.
const MOST_VALUES: u64 = 1 << 28;

/// Reorders features and classes as in the contract, matching them by name.
///
/// Data that is already encoded this way, or that has no names, is returned unchanged.
pub(super) fn coded(contract: &DataContract, data: Federation) -> Result<Federation, ContractMismatch> {
    let (Some(own), Some(wanted)) = (features(data.kind()), features(contract.inputs)) else {
        return coded_tokens(contract, data);
    };
    let columns = column_places(data.feature_columns(), &contract.columns)?;
    let classes = class_places(&data, contract)?;
    let widened =
        matches!((data.kind(), contract.inputs), (InputKind::Bytes { .. }, InputKind::Dense { .. }));
    if columns.is_none() && classes.is_none() && !widened {
        return Ok(data);
    }
    let misfit = || ContractMismatch::Inputs { found: data.kind(), expected: contract.inputs };
    let places = columns.unwrap_or_else(|| (0..own).map(Some).collect());
    if places.len() != own || places.iter().flatten().any(|&place| place >= wanted) {
        return Err(misfit());
    }
    let examples: u64 = data.devices().map(|k| data.example_count(k)).sum();
    let values = examples.saturating_mul(wanted as u64);
    if values > MOST_VALUES {
        return Err(ContractMismatch::TooWide { values, most: MOST_VALUES });
    }
    let target = match data.classes() {
        0 => TargetKind::Values,
        _ => TargetKind::Classes(contract.classes),
    };
    let mut builder = FederationBuilder::with_target(data.name(), contract.inputs, target);
    builder.class_names(contract.class_names.clone()).feature_columns(contract.columns.clone());
    if let Some(table) = &contract.table {
        builder.coding(table.clone());
    }
    for k in data.devices() {
        let (inputs, targets) = data.stored(k);
        let targets = match targets {
            StoredTargets::Classes(labels) => StoredTargets::Classes(numbered(labels, classes.as_deref())),
            values => values,
        };
        let (id, split) = (data.id(k), data.split_of(k));
        let moved = match (inputs, contract.inputs) {
            (DeviceExamples::Bytes(rows), InputKind::Bytes { .. }) => {
                let rows = moved(rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Bytes(&rows), targets.lent())
            }
            (DeviceExamples::Bytes(rows), InputKind::Dense { .. }) => {
                // The value that a model receives for a byte.
                let rows: Vec<f32> = rows.iter().map(|&value| f32::from(value) / 255.0).collect();
                let rows = moved(&rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Dense(&rows), targets.lent())
            }
            (DeviceExamples::Dense(rows), InputKind::Dense { .. }) => {
                let rows = moved(rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Dense(&rows), targets.lent())
            }
            _ => return Err(misfit()),
        };
        moved.map_err(|_| ContractMismatch::Invalid)?;
    }
    Ok(builder.build())
}

/// Expands rows of `own` features to rows of `wanted` features. Missing features are 0, and
/// features without a place are left out. Several categories may share a place.
fn moved<T: Copy + Default + PartialEq>(
    rows: &[T],
    own: usize,
    places: &[Option<usize>],
    wanted: usize,
) -> Vec<T> {
    let mut moved = vec![T::default(); rows.len() / own.max(1) * wanted];
    for (row, to) in rows.chunks_exact(own.max(1)).zip(moved.chunks_exact_mut(wanted.max(1))) {
        for (place, &value) in places.iter().zip(row) {
            match place {
                Some(place) if value != T::default() => to[*place] = value,
                _ => {}
            }
        }
    }
    moved
}

/// Renumbers labels. A label out of range, from a modified file, becomes the highest class.
fn numbered(labels: Vec<u32>, places: Option<&[u32]>) -> Vec<u32> {
    let Some((places, last)) = places.and_then(|places| Some((places, *places.last()?))) else {
        return labels;
    };
    labels.into_iter().map(|label| places.get(label as usize).copied().unwrap_or(last)).collect()
}

/// Renumbers the words of texts as in the contract. Unknown words are skipped.
fn coded_tokens(contract: &DataContract, data: Federation) -> Result<Federation, ContractMismatch> {
    let (InputKind::Tokens { len: own, .. }, InputKind::Tokens { len, .. }) = (data.kind(), contract.inputs)
    else {
        return Ok(data);
    };
    let classes = class_places(&data, contract)?;
    let Some(words) = data.words().filter(|_| !contract.words.is_empty()) else { return Ok(data) };
    let is_equal = words.len() == contract.words.len() && words.iter().eq(contract.words.iter());
    if is_equal && classes.is_none() && own == len {
        return Ok(data);
    }
    let known: HashMap<&str, u32> =
        contract.words.iter().zip(0u32..).skip(1).map(|(word, place)| (word.as_str(), place)).collect();
    let places: Vec<u32> = words.iter().map(|word| known.get(word).copied().unwrap_or(0)).collect();
    let target = match data.classes() {
        0 => TargetKind::Values,
        _ => TargetKind::Classes(contract.classes),
    };
    let mut builder = FederationBuilder::with_target(data.name(), contract.inputs, target);
    builder.class_names(contract.class_names.clone()).words(contract.words.clone());
    if let Some(table) = &contract.table {
        builder.coding(table.clone());
    }
    for k in data.devices() {
        let (inputs, targets) = data.stored(k);
        let targets = match targets {
            StoredTargets::Classes(labels) => StoredTargets::Classes(numbered(labels, classes.as_deref())),
            values => values,
        };
        let DeviceExamples::Tokens(ids) = inputs else { return Err(ContractMismatch::Invalid) };
        let mut moved = Vec::with_capacity(ids.len() / own.max(1) * len);
        for row in ids.chunks_exact(own.max(1)) {
            let place = |id: &u32| places.get(*id as usize).copied().filter(|&place| place > 0);
            let end = moved.len() + len;
            moved.extend(row.iter().filter_map(place).take(len));
            moved.resize(end, 0);
        }
        let (id, split) = (data.id(k), data.split_of(k));
        let pushed = builder.push(id, split, DeviceExamples::Tokens(&moved), targets.lent());
        pushed.map_err(|_| ContractMismatch::Invalid)?;
    }
    Ok(builder.build())
}

/// Returns the contract's index of each feature, or `None` if the columns are equal or unnamed. A
/// feature without an index is not part of the contract.
///
/// Columns are found by name, in any order, and further columns are ignored.
fn column_places(
    found: &[FeatureColumn],
    expected: &[FeatureColumn],
) -> Result<Option<Vec<Option<usize>>>, ContractMismatch> {
    if found.is_empty() || expected.is_empty() || found == expected {
        return Ok(None);
    }
    let mut next = 0;
    let mut wanted: HashMap<&str, (usize, &FeatureColumn)> = HashMap::new();
    for column in expected {
        wanted.insert(&column.name, (next, column));
        next += column.width();
        if !found.iter().any(|own| own.name == column.name) {
            let found = found.iter().map(|own| own.name.clone()).collect();
            return Err(ContractMismatch::Column { name: column.name.clone(), found });
        }
    }
    let mut places = Vec::new();
    for own in found {
        let Some(&(first, expected)) = wanted.get(own.name.as_str()) else {
            places.resize(places.len() + own.width(), None);
            continue;
        };
        let name = || own.name.clone();
        match (own.categories.is_empty(), expected.categories.is_empty()) {
            (true, true) => {
                places.push(Some(first));
                if own.indicator {
                    places.push(expected.indicator.then_some(first + 1));
                }
            }
            (true, false) => return Err(ContractMismatch::Numbers { name: name() }),
            (false, true) => return Err(ContractMismatch::Words { name: name() }),
            (false, false) => {
                let known: HashMap<&str, usize> = expected
                    .categories
                    .iter()
                    .zip(first..)
                    .map(|(text, place)| (text.as_str(), place))
                    .collect();
                let other = expected.other.then_some(first + expected.categories.len());
                places.extend(own.categories.iter().map(|text| known.get(text.as_str()).copied().or(other)));
                if own.other {
                    places.push(other);
                }
            }
        }
    }
    Ok(Some(places))
}

/// Returns the contract's number of each class, or `None` if the numbers are equal.
///
/// Classes without names are identified by their numbers; a device may have only the lowest ones.
fn class_places(data: &Federation, contract: &DataContract) -> Result<Option<Vec<u32>>, ContractMismatch> {
    let (found, expected) = (data.class_names(), &contract.class_names[..]);
    if data.classes() == 0 || contract.classes == 0 {
        return Ok(None);
    }
    if found.is_empty() || expected.is_empty() {
        return Ok((data.classes() < contract.classes).then(|| (0..data.classes() as u32).collect()));
    }
    if found == expected {
        return Ok(None);
    }
    let place = |name: &String| {
        let place = expected.iter().take(contract.classes).position(|known| known == name);
        place
            .map(|place| place as u32)
            .ok_or_else(|| ContractMismatch::Class { name: name.clone(), expected: expected.to_vec() })
    };
    found.iter().map(place).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{FederationIndex, Split};

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn column(name: &str, categories: &[&str]) -> FeatureColumn {
        FeatureColumn::of_categories(name, names(categories))
    }

    #[test]
    fn features_are_found_by_the_names_of_columns_and_categories() {
        let expected = [column("age", &[]), column("city", &["Oslo", "Paris", "Rome"]), column("pulse", &[])];
        let places = |found: &[FeatureColumn]| column_places(found, &expected);
        let said = |found: &[FeatureColumn]| places(found).unwrap_err().to_string();
        assert_eq!(places(&expected), Ok(None));
        let some = [column("age", &[]), column("city", &["Rome", "Oslo"]), column("pulse", &[])];
        assert_eq!(places(&some), Ok(Some(vec![Some(0), Some(3), Some(1), Some(4)])));
        assert_eq!(
            said(&some[..2]),
            r#"there is no column "pulse", which the contract requires; the columns are age, city"#
        );
        let other_order =
            [column("pulse", &[]), column("more", &[]), column("city", &["Bonn"]), column("age", &[])];
        assert_eq!(places(&other_order), Ok(Some(vec![Some(4), None, None, Some(0)])));
        let words = said(&[column("age", &["old"]), column("city", &["Rome"]), column("pulse", &[])]);
        assert_eq!(words, r#"column "age" contains words, but the contract has numbers"#);
        let numbers = said(&[column("age", &[]), column("city", &[]), column("pulse", &[])]);
        assert_eq!(numbers, r#"column "city" contains numbers, but the contract has words"#);
    }

    #[test]
    fn unknown_categories_share_the_place_of_other_values() {
        let expected = [FeatureColumn { other: true, ..column("city", &["Oslo"]) }, column("age", &[])];
        let found = [column("age", &[]), column("city", &["Bonn", "Oslo", "Rome"])];
        let places = column_places(&found, &expected).unwrap().unwrap();
        assert_eq!(places, [Some(2), Some(1), Some(0), Some(1)]);
        assert_eq!(
            moved(&[7.0, 0.0, 0.0, 1.0, 8.0, 1.0, 0.0, 0.0], 4, &places, 3),
            [0.0, 1.0, 7.0, 0.0, 1.0, 8.0]
        );
    }

    #[test]
    fn words_are_found_by_name_and_unknown_words_are_skipped() {
        let texts = |words: &[&str], len: usize, ids: &[u32]| {
            let kind = InputKind::Tokens { len, vocabulary: words.len() };
            let mut builder = FederationBuilder::new("t", kind, 2);
            builder.words(names(words)).class_names(names(&["no", "yes"]));
            builder.push("a", Split::Train, DeviceExamples::Tokens(ids), &[1]).unwrap();
            builder.build()
        };
        let contract = DataContract::from_federation(&texts(&["", "good", "bad"], 3, &[1, 2, 0]));
        let fitted = contract.fit(texts(&["", "bad", "odd", "good"], 4, &[2, 3, 1, 0])).unwrap();
        assert!(matches!(fitted.stored(FederationIndex(0)).0, DeviceExamples::Tokens(&[1, 2, 0])));
        assert_eq!(DataContract::from_bytes(&contract.to_bytes()), Ok(contract));
    }

    #[test]
    fn a_row_moves_to_its_places() {
        let places = [Some(0), Some(3), Some(1)];
        assert_eq!(moved(&[5, 1, 0, 6, 0, 1], 3, &places, 4), [5, 0, 0, 1, 6, 1, 0, 0]);
    }

    fn device(kind: InputKind, classes: &[&str], labels: &[u32]) -> Federation {
        let mut builder = FederationBuilder::new("t", kind, classes.len().max(2));
        builder.class_names(names(classes));
        let inputs = match kind {
            InputKind::Bytes { .. } => DeviceExamples::Bytes(&[255, 0]),
            _ => DeviceExamples::Dense(&[1.0, 0.0]),
        };
        builder.push("a", Split::Train, inputs, labels).unwrap();
        builder.build()
    }

    #[test]
    fn classes_are_found_by_their_names() {
        let dense = InputKind::Dense { dim: 1 };
        let contract = DataContract::from_federation(&device(dense, &["ill", "unclear", "well"], &[0, 2]));
        let fitted = contract.fit(device(dense, &["well", "ill"], &[0, 1])).unwrap();
        assert_eq!((fitted.classes(), fitted.class_names()), (3, &names(&["ill", "unclear", "well"])[..]));
        assert_eq!(fitted.stored(FederationIndex(0)).1, StoredTargets::Classes(vec![2, 0]));
        let unknown = contract.fit(device(dense, &["ill", "dead"], &[0, 1])).unwrap_err().to_string();
        assert_eq!(unknown, r#"class "dead" is not in the contract: ["ill", "unclear", "well"]"#);
        let unnamed = contract.fit(device(dense, &[], &[0, 1])).unwrap();
        assert_eq!(unnamed.classes(), 3, "a device that has seen the lowest numbers");
    }

    #[test]
    fn bytes_are_the_numbers_that_they_stand_for() {
        let contract =
            DataContract::from_federation(&device(InputKind::Dense { dim: 1 }, &["no", "yes"], &[0, 1]));
        let fitted = contract.fit(device(InputKind::Bytes { dim: 1 }, &["no", "yes"], &[0, 1])).unwrap();
        assert!(matches!(fitted.stored(FederationIndex(0)).0, DeviceExamples::Dense(&[1.0, 0.0])));
    }

    #[test]
    fn a_contract_that_contradicts_itself_or_asks_for_much_memory_is_refused() {
        let (own, dense) = (device(InputKind::Dense { dim: 1 }, &["no", "yes"], &[0, 1]), &["yes", "no"]);
        let mut contract = DataContract::from_federation(&own);
        contract.class_names = names(dense);
        contract.inputs = InputKind::Dense { dim: 1 << 28 };
        assert!(matches!(contract.fit(own.clone()), Err(ContractMismatch::TooWide { .. })));
        contract.inputs = InputKind::Dense { dim: 0 };
        assert!(matches!(contract.fit(own), Err(ContractMismatch::Inputs { .. })));
    }
}
