// What Kubernetes' own evaluator of device selectors says of the expressions on stdin (JSON strings, one
// after the other): a JSON object a line. cel_answers.json was made with it; in a checkout of Kubernetes:
//
//	mkdir -p cmd/answers && cp .../cel_answers.go cmd/answers/main.go && go run ./cmd/answers < expressions
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	device := dracel.Device{
		Driver: "d.io",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"model": {StringValue: ptr.To("H100")}, "n": {IntValue: ptr.To(int64(42))},
			"v": {VersionValue: ptr.To("1.2.3")}, "b": {BoolValue: ptr.To(true)},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("80Gi")},
		},
	}
	for {
		var expression string
		if in.Decode(&expression) != nil {
			return
		}
		compiled := compiler.CompileCELExpression(expression, dracel.Options{})
		if compiled.Error != nil {
			out.Encode(map[string]any{"refused": compiled.Error.Error()})
		} else if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			out.Encode(map[string]any{"cost": compiled.MaxCost})
		} else {
			within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			matches, _, err := compiled.DeviceMatches(within, device)
			cancel()
			if err != nil {
				out.Encode(map[string]any{"error": err.Error()})
			} else {
				out.Encode(map[string]any{"matches": matches})
			}
		}
	}
}
