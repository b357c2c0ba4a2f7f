// Which cases of a test program a start of it runs: for its main.
#pragma once

#include <algorithm>
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>
#include <boost/test/unit_test_parameters.hpp>
#include <cstdlib>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace lockstep::test {

/// Every case with what it and the suites around it were decorated with.
class CaseSurvey final : public boost::unit_test::test_tree_visitor {
 public:
  struct Case {
    boost::unit_test::test_case* unit;
    std::vector<int> counts;  ///< of the innermost that says any; empty: alone
    bool anywhere = false;    ///< at those of the program's other cases
    std::set<std::string> labels;

    bool runs_at(int count) const {
      if (anywhere) return true;
      return count == 0 ? counts.empty() : std::find(counts.begin(), counts.end(), count) != counts.end();
    }
    /// "golden.", "slow." or neither.
    std::string kind() const {
      return labels.count("golden") ? "golden." : labels.count("slow") ? "slow." : "";
    }
    /// Where it runs: "alone", "np3".
    std::vector<std::string> places() const {
      if (anywhere) return {};
      if (counts.empty()) return {"alone"};
      std::vector<std::string> found;
      for (const int count : counts) found.push_back("np" + std::to_string(count));
      return found;
    }
  };
  std::vector<Case> cases;

 private:
  void visit(const boost::unit_test::test_case& unit) override {
    Case one = above_.empty() ? Case{} : above_.back();
    add(one, unit);
    one.unit = const_cast<boost::unit_test::test_case*>(&unit);
    cases.push_back(std::move(one));
  }
  bool test_suite_start(const boost::unit_test::test_suite& suite) override {
    Case one = above_.empty() ? Case{} : above_.back();
    add(one, suite);
    above_.push_back(std::move(one));
    return true;
  }
  void test_suite_finish(const boost::unit_test::test_suite&) override { above_.pop_back(); }

  static void add(Case& one, const boost::unit_test::test_unit& unit) {
    for (const auto& decorator : unit.p_decorators.get()) {
      if (const auto* where = dynamic_cast<const ranks*>(decorator.get())) {
        one.counts = where->counts();
        one.anywhere = one.counts.empty();
      }
      if (const auto* label = dynamic_cast<const Labelled*>(decorator.get()))
        one.labels.insert(label->name());
    }
  }

  std::vector<Case> above_;
};

/// Takes the cases out of the test tree that do not run at this number of ranks (0: started plain, without
/// MPI), so that no filter can choose them; a filter that chooses none of the others is Boost.Test's error. A
/// program none of whose cases names rank counts runs them all. Where CTest says in LOCKSTEP_TEST_ENTRIES
/// with what entries it starts this program ("alone", "np3", "slow.np2", "golden.alone"; "any.np3" runs every
/// kind), they must be those that its cases need: a case that no entry runs would pass unseen.
inline void keep_cases_of(int count) {
  namespace boost_test = boost::unit_test;
  CaseSurvey survey;
  boost_test::traverse_test_tree(boost_test::framework::master_test_suite().p_id, survey, true);

  if (const char* const listed = std::getenv("LOCKSTEP_TEST_ENTRIES")) {
    std::istringstream words(listed);
    std::set<std::string> left;
    for (std::string word; words >> word;) left.insert(word);
    const std::set<std::string> registered = left;
    for (const auto& one : survey.cases) {
      for (const std::string& place : one.places()) {
        const std::string entry = one.kind() + place, of_any_kind = "any." + place;
        if (!registered.count(entry) && !registered.count(of_any_kind))
          throw std::runtime_error("no CTest entry '" + entry + "' runs " + one.unit->full_name());
        left.erase(entry);
        left.erase(of_any_kind);
      }
    }
    if (!left.empty()) throw std::runtime_error("CTest entry '" + *left.begin() + "' runs no case");
  }

  // --list_content shows everything.
  if (boost_test::runtime_config::get<boost_test::output_format>(
          boost_test::runtime_config::btrt_list_content) != boost_test::OF_INVALID)
    return;
  if (std::all_of(survey.cases.begin(), survey.cases.end(),
                  [](const auto& one) { return one.counts.empty(); }))
    return;
  for (const auto& one : survey.cases) {
    if (one.runs_at(count)) continue;
    boost_test::test_unit* unit = one.unit;
    while (unit->p_parent_id != boost_test::INV_TEST_UNIT_ID) {
      auto& suite = boost_test::framework::get<boost_test::test_suite>(unit->p_parent_id);
      suite.remove(unit->p_id);
      if (suite.size() > 0) break;
      unit = &suite;  // a suite without cases would count as enabled
    }
  }
}

}  // namespace lockstep::test
