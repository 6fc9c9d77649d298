// Package v20170312 has the declarations of Tencent Cloud's SDK that flannel's backend tencent-vpc
// is compiled against. Module proxies do not have the SDK's own package, and no lab uses that
// backend: every call of its API is an error.
package v20170312

import "errors"

var errNoAPI = errors.New("call the API of Tencent Cloud: this flanneld was built without it")

type (
	Client struct{}
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		RouteId              *uint64
		DestinationCidrBlock *string
		GatewayType          *string
		GatewayId            *string
		RouteType            *string
		Enabled              *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	DescribeRouteTablesRequest  struct{ Filters []*Filter }
	DescribeRouteTablesResponse struct {
		Response *struct{ RouteTableSet []*RouteTable }
	}
	DeleteRoutesRequest struct {
		RouteTableId *string
		Routes       []*Route
	}
	DeleteRoutesResponse struct{}
	CreateRoutesRequest  struct {
		RouteTableId *string
		Routes       []*Route
	}
	CreateRoutesResponse struct{}
)

func NewClientWithSecretId(_, _, _ string) (*Client, error) { return nil, errNoAPI }

func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

func NewDeleteRoutesRequest() *DeleteRoutesRequest { return &DeleteRoutesRequest{} }

func NewCreateRoutesRequest() *CreateRoutesRequest { return &CreateRoutesRequest{} }

func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errNoAPI
}

func (*Client) DeleteRoutes(*DeleteRoutesRequest) (*DeleteRoutesResponse, error) {
	return nil, errNoAPI
}

func (*Client) CreateRoutes(*CreateRoutesRequest) (*CreateRoutesResponse, error) {
	return nil, errNoAPI
}
